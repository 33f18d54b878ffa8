"""Products with quantized weights, and the standard's own integer operators, against the kernels."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from contrib_kernels import agree, fitting, model, ours
from hypothesis import assume, given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_a_range_measured_at_run_time(per_column, dtype, bias):
    info = np.iinfo(dtype)
    feeds = {
        "a": floats(2, 3, 6),
        "b": fitting(RNG.integers(info.min, info.max, (6, 5)).astype(dtype)),
        "step": RNG.uniform(0.01, 0.02, 5 if per_column else ()).astype(np.float32),
        "zero": RNG.integers(0, 100, 5 if per_column else ()).astype(dtype),
        "bias": floats(5) if bias else None,
    }
    agree("DynamicQuantizeMatMul", feeds)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_integers_to_floats(per_column, bias):
    feeds = {
        "a": RNG.integers(0, 255, (2, 3, 6)).astype(np.uint8),
        "b": fitting(RNG.integers(-128, 127, (6, 5)).astype(np.int8)),
        "a step": np.array(0.02, np.float32),
        "b step": RNG.uniform(0.01, 0.02, 5 if per_column else ()).astype(np.float32),
        "a zero": np.array(110, np.uint8),
        "b zero": RNG.integers(-9, 9, 5 if per_column else ()).astype(np.int8),
        "bias": floats(5) if bias else None,
    }
    agree("MatMulIntegerToFloat", feeds)


def quantized_lstm(
    batch: int, count: int, dtype: type, *, per_result: bool, rest: bool
) -> dict[str, np.ndarray | None]:
    hidden, info = 4, np.iinfo(dtype)
    steps = (count, 4 * hidden) if per_result else (count,)
    zero = np.full(steps, 0 if dtype == np.int8 else 120, dtype)
    return {
        "x": floats(5, batch, 3),
        "w": fitting(RNG.integers(info.min, info.max, (count, 3, 4 * hidden)).astype(dtype)),
        "r": fitting(RNG.integers(info.min, info.max, (count, hidden, 4 * hidden)).astype(dtype)),
        "b": floats(count, 8 * hidden) if rest else None,
        "lengths": None,
        "h": floats(count, batch, hidden) if rest else None,
        "c": floats(count, batch, hidden) if rest else None,
        "p": floats(count, 3 * hidden) if rest else None,
        "w step": RNG.uniform(0.005, 0.02, steps).astype(np.float32),
        "w zero": zero,
        "r step": RNG.uniform(0.005, 0.02, steps).astype(np.float32),
        "r zero": zero,
    }


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("per_result", [False, True])
@pytest.mark.parametrize("rest", [False, True], ids=["plain", "states and peepholes"])
def test_an_lstm_of_ranges_measured_at_run_time(direction: str, dtype: type, per_result: bool, rest: bool):
    feeds = quantized_lstm(1, 2 if direction == "bidirectional" else 1, dtype, per_result=per_result, rest=rest)
    agree("DynamicQuantizeLSTM", feeds, outputs=3, hidden_size=4, direction=direction)


def test_an_lstm_quantizes_the_states_of_all_samples_as_one():
    """With one thread; with two the kernel takes each thread's samples apart."""
    feeds = quantized_lstm(4, 1, np.int8, per_result=True, rest=True)
    proto, options = model("DynamicQuantizeLSTM", feeds, outputs=3, hidden_size=4), ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {name: value for name, value in feeds.items() if value is not None})
    for have, want in zip(theirs, ours(proto, feeds), strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 8]), st.sampled_from([16, 32]), st.sampled_from([32, 48, 64, 70]),
    st.sampled_from([None, "packed", "floats"]), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_products_with_blocks_of_few_bits(seed, bits, block, columns, zeros, bias):
    assume(bits != 8 or zeros != "floats")  # the kernel has no such
    rng, rows = np.random.default_rng(seed), 6
    count = -(-columns // block)
    feeds = {
        "a": rng.standard_normal((3, columns)).astype(np.float32),
        "b": rng.integers(0, 256, (rows, count, block * bits // 8)).astype(np.uint8),
        "steps": rng.uniform(0.01, 0.1, (rows, count)).astype(np.float32),
        "zeros": None,
        "index": None,
        "bias": rng.standard_normal(rows).astype(np.float32) if bias else None,
    }
    if zeros == "packed":
        feeds["zeros"] = rng.integers(0, 256, (rows, -(-count * bits // 8))).astype(np.uint8)
    elif zeros == "floats":
        feeds["zeros"] = rng.uniform(0, 2**bits, (rows, count)).astype(np.float32)
    constants = ["b", "steps", "zeros", "bias"]
    agree("MatMulNBits", feeds, constants=constants, bits=bits, block_size=block, N=rows, K=columns)


def test_the_standards_own():
    x, w = RNG.integers(0, 255, (2, 4, 6, 5)).astype(np.uint8), RNG.integers(0, 255, (6, 2, 3, 3)).astype(np.uint8)
    zeros = {"xz": np.array(100, np.uint8), "wz": np.array(90, np.uint8)}
    agree("ConvInteger", {"x": x, "w": w} | zeros, domain="", group=2, pads=[1, 0, 1, 1], strides=[1, 2])
    a, b = RNG.integers(0, 255, (2, 3, 6)).astype(np.uint8), fitting(RNG.integers(-128, 127, (6, 5)).astype(np.int8))
    zeros = {"az": np.array(100, np.uint8), "bz": np.array(3, np.int8)}
    agree("MatMulInteger", {"a": a, "b": b} | zeros, domain="")
    for x in (floats(3, 4), np.abs(floats(5)), -np.abs(floats(5)), np.zeros(4, np.float32)):
        agree("DynamicQuantizeLinear", {"x": x}, outputs=3, steps=1, domain="")
    size, other = np.array(0.02, np.float32), np.array(0.4, np.float32)
    zero = np.array(100, np.uint8)
    feeds = {"a": a, "as": size, "az": zero, "b": b, "bs": size, "bz": np.array(3, np.int8), "ys": other, "yz": zero}
    agree("QLinearMatMul", feeds, steps=1, domain="")


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 8]), st.sampled_from([16, 32]), st.sampled_from([32, 48, 64]),
    st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_rows_of_a_table_of_few_bits(seed, bits, block, columns, zeros):
    """Places count from either end; where none is there is nothing but zeros."""
    rng, rows = np.random.default_rng(seed), 5
    count = -(-columns // block)
    feeds = {
        "table": rng.integers(0, 256, (rows, columns * bits // 8)).astype(np.uint8),
        "places": rng.integers(-rows - 1, rows + 2, (2, 3)),
        "steps": rng.uniform(0.01, 0.1, (rows, count)).astype(np.float32),
        "zeros": rng.integers(0, 256, (rows, -(-count * bits // 8))).astype(np.uint8) if zeros else None,
    }
    agree("GatherBlockQuantized", feeds, constants=["table", "steps", "zeros"], bits=bits, block_size=block)
