"""Operators on 8-bit integers against the kernels: equal, but for halves that float32 rounds the other way."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kernels import agree, fitting, model, ours
from hypothesis import given, settings
from hypothesis import strategies as st

TYPES = [np.uint8, np.int8]


def integers(rng: np.random.Generator, dtype: type, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def step(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def steps(rng: np.random.Generator, dtype: type, value: float) -> list[np.ndarray]:
    """A step around a value, and a zero point somewhere."""
    return [step(value * rng.uniform(0.5, 1.5)), integers(rng, dtype)]


def named(*values: np.ndarray | None) -> dict[str, np.ndarray | None]:
    return {f"x{place}": value for place, value in enumerate(values)}


@given(st.integers(0, 2**32 - 1), st.sampled_from(TYPES), st.sampled_from(["QLinearAdd", "QLinearMul"]), st.booleans())
@settings(deadline=None, max_examples=30)
def test_sums_and_products(seed, dtype, op, broadcast):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, dtype, 3, 4, 5), integers(rng, dtype, *((5,) if broadcast else (3, 4, 5)))
    size = 0.03 if op == "QLinearAdd" else 2.0
    feeds = named(a, *steps(rng, dtype, 0.02), b, *steps(rng, dtype, 0.02), *steps(rng, dtype, size))
    agree(op, feeds, steps=1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 0, 1], "strides": [2, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_averages_of_windows(dtype, channels_last, attributes):
    rng = np.random.default_rng(0)
    x = integers(rng, dtype, 2, 3, 7, 5)
    x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    feeds = named(x, *steps(rng, dtype, 0.02), *steps(rng, dtype, 0.02))
    agree("QLinearAveragePool", feeds, steps=1, channels_last=channels_last, **attributes)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_averages_of_images(dtype, channels_last):
    rng = np.random.default_rng(1)
    x = integers(rng, dtype, *((2, 5, 6, 8) if channels_last else (2, 8, 5, 6)))
    feeds = named(x, *steps(rng, dtype, 0.02), *steps(rng, dtype, 0.01))
    agree("QLinearGlobalAveragePool", feeds, steps=1, channels_last=channels_last)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_activations(dtype, op):
    rng = np.random.default_rng(2)
    x = integers(rng, dtype, 3, 4, 50)
    feeds = named(x, *steps(rng, dtype, 0.05), step(1 / 256), integers(rng, dtype))
    attributes = {"alpha": 0.3} if op == "QLinearLeakyRelu" else {}
    agree(op, feeds, steps=1, constants=["x1", "x2", "x3", "x4"], **attributes)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 12)])
def test_softmax(dtype, axis, opset):
    rng = np.random.default_rng(3)
    zero = np.array(np.iinfo(dtype).min, dtype)
    feeds = named(integers(rng, dtype, 3, 4, 5), step(0.03), integers(rng, dtype), step(1 / 256), zero)
    agree("QLinearSoftmax", feeds, steps=1, axis=axis, opset=opset)


@pytest.mark.parametrize("dtype", TYPES)
def test_parts_of_several_steps(dtype):
    rng = np.random.default_rng(4)
    parts = [[integers(rng, dtype, 2, size, 3), *steps(rng, dtype, 0.02)] for size in (1, 4, 2)]
    agree("QLinearConcat", named(*steps(rng, dtype, 0.02), *(item for part in parts for item in part)), steps=1, axis=1)


@pytest.mark.parametrize("dtype", TYPES)
def test_choices(dtype):
    rng = np.random.default_rng(5)
    chosen = rng.integers(0, 2, (3, 4)).astype(bool)
    x, y = integers(rng, dtype, 3, 4), integers(rng, dtype, 3, 4)
    feeds = named(chosen, x, *steps(rng, dtype, 0.02), y, *steps(rng, dtype, 0.02), *steps(rng, dtype, 0.03))
    constants = [f"x{place}" for place in (2, 3, 5, 6, 7, 8)]
    agree("QLinearWhere", feeds, steps=1, constants=constants)


def test_means_follow_their_documentation():
    rng = np.random.default_rng(6)
    x = integers(rng, np.uint8, 3, 4, 5)
    feeds = named(x, step(0.02), np.uint8(100), step(0.01), np.uint8(50))
    got = ours(model("QLinearReduceMean", {k: np.asarray(v) for k, v in feeds.items()}, axes=[1], keepdims=0), feeds)[0]
    mean = ((x.astype(np.float64) - 100) * np.float32(0.02)).mean(1)
    np.testing.assert_array_equal(got, np.clip(np.rint(mean / np.float32(0.01)) + 50, 0, 255))


@given(
    st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([1.0, 0.4]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_gemms(seed, flip_a, flip_b, per_column, bias, quantized, alpha):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, np.uint8, 4, 6), fitting(integers(rng, np.int8, 6, 5))
    b_step = rng.uniform(0.01, 0.03, 5).astype(np.float32) if per_column else step(0.02)
    feeds = named(
        np.ascontiguousarray(a.T) if flip_a else a,
        *steps(rng, np.uint8, 0.02),
        np.ascontiguousarray(b.T) if flip_b else b,
        b_step,
        np.zeros(5, np.int8) if per_column else integers(rng, np.int8),
        rng.integers(-2000, 2000, 5).astype(np.int32) if bias else None,
        *(steps(rng, np.uint8, 0.3) if quantized else ()),
    )
    agree("QGemm", feeds, steps=1, transA=int(flip_a), transB=int(flip_b), alpha=alpha)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions(domain, per_channel, dtype):
    rng = np.random.default_rng(7)
    x, w = integers(rng, dtype, 2, 4, 6, 5), fitting(integers(rng, np.int8, 6, 2, 3, 3))
    w_step = rng.uniform(0.005, 0.02, 6).astype(np.float32) if per_channel else step(0.01)
    w_zero = np.zeros(6, np.int8) if per_channel else np.array(0, np.int8)
    bias = rng.integers(-3000, 3000, 6).astype(np.int32)
    attributes = {"pads": [1, 0, 1, 1], "strides": [2, 1], "group": 2}
    if domain:
        x, attributes = np.ascontiguousarray(np.moveaxis(x, 1, -1)), attributes | {"channels_last": 1}
    feeds = named(x, *steps(rng, dtype, 0.02), w, w_step, w_zero, *steps(rng, dtype, 0.5), bias)
    constants = [f"x{place}" for place in range(1, 9) if place != 3]
    agree("QLinearConv", feeds, steps=1, domain=domain, constants=constants, **attributes)


@pytest.mark.parametrize("kind", [None, "ends", "square"])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, 2])
def test_attention(kind, unidirectional, past):
    rng = np.random.default_rng(8)
    x, w = integers(rng, np.uint8, 2, 3, 6), fitting(integers(rng, np.int8, 6, 24))
    seen = {"ends": np.array([3, 2], np.int32), "square": rng.integers(0, 2, (2, 3, 3 + past)).astype(np.int32)}
    feeds = named(
        x, w, rng.standard_normal(24).astype(np.float32), step(0.02), step(0.01), seen.get(kind),
        np.array(120, np.uint8), np.array(3, np.int8),
        rng.standard_normal((2, 2, 2, past, 4)).astype(np.float32) if past else None,
    )  # fmt: skip
    agree("QAttention", feeds, outputs=2, rtol=1e-3, num_heads=2, unidirectional=unidirectional)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_steps_of_this_domain(axis, dtype):
    rng = np.random.default_rng(9)
    count = () if axis is None else ((4, 5)[axis],)
    attributes = {} if axis is None else {"axis": axis}
    size, zero = rng.uniform(0.01, 0.02, count).astype(np.float32), integers(rng, dtype, *count)
    agree("DequantizeLinear", named(integers(rng, dtype, 4, 5), size, zero), **attributes)
    agree("QuantizeLinear", named(rng.standard_normal((4, 5)).astype(np.float32), size, zero), steps=1, **attributes)
