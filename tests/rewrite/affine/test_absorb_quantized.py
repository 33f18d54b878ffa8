"""Weights stored in integers take scales over: steps by |s|, integers by the sign; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)

ROUNDING = 2e-5
"""Steps are float32 by the operator's definition; the check of each rewrite is the one in float64."""


def weight(g, rng, shape, *, axis=None, dtype=np.int8, zero="absent", name="w", low=None):
    """A dequantized constant: one step, or one per channel of ``axis``."""
    info = np.iinfo(dtype)
    integers = rng.integers(info.min + 1 if low is None else low, info.max, shape).astype(dtype)
    count = () if axis is None else (shape[axis],)
    operands = [g.constant(integers, name), rng.uniform(0.01, 0.1, count)]
    if zero == "given":
        middle = 0 if dtype == np.int8 else 128
        operands.append(g.constant(np.full(count, middle, dtype), f"{name}.zero"))
    attributes = {} if axis is None else {"axis": axis}
    return g.op("DequantizeLinear", *operands, name=f"{name}.dequantized", **attributes)


@given(SEED, st.sampled_from([1, 2]), st.booleans(), st.sampled_from(["absent", "given"]), st.booleans(), st.booleans())
def test_behind_a_convolution(graph, fold, seed, groups, per_channel, zero, transposed, with_bias):
    rng = np.random.default_rng(seed)
    groups = 1 if transposed else groups
    g = graph(dtype=np.float32, opset=19)
    shape = (4, 6, 3) if transposed else (6, 4 // groups, 3)
    channel = 1 if transposed else 0
    w = weight(g, rng, shape, axis=channel if per_channel else None, zero=zero)
    operands = [w, *([rng.normal(size=6)] if with_bias else [])]
    y = g.op("ConvTranspose" if transposed else "Conv", g.input("x", ["N", 4, 7]), *operands, group=groups)
    g.output(g.batch_norm(y, 6, rng))
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    assert result.ops == {"DequantizeLinear": 1, "ConvTranspose" if transposed else "Conv": 1}
    dequantize = next(node for node in result.after.graph.node if node.op_type == "DequantizeLinear")
    assert result.weight(dequantize.input[0]).dtype == np.int8
    assert (result.weight(dequantize.input[1]) > 0).all()


@given(SEED, st.booleans(), st.booleans())
def test_behind_a_product(graph, fold, seed, per_column, unsigned):
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    kind = {"dtype": np.uint8, "zero": "given"} if unsigned else {}
    w = weight(g, rng, (4, 6), axis=1 if per_column else None, low=1 if unsigned else None, **kind)
    y = g.op("Mul", g.op("MatMul", g.input("x", ["N", 3, 4]), w), rng.choice([-1, 1], 6) * rng.uniform(0.5, 2, 6))
    g.output(y)
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    assert result.ops == {"DequantizeLinear": 1, "MatMul": 1}


@given(SEED, st.booleans(), st.booleans(), st.booleans())
def test_behind_a_gemm(graph, fold, seed, per_channel, transposed, with_addend):
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    shape, axis = ((6, 4), 0) if transposed else ((4, 6), 1)
    operands = [weight(g, rng, shape, axis=axis if per_channel else None)]
    if with_addend:
        operands.append(rng.normal(size=6))
    y = g.op("Gemm", g.input("x", ["N", 4]), *operands, transB=int(transposed), alpha=0.5, beta=2.0)
    g.output(g.batch_norm(y, 6, rng))
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    assert result.ops == {"DequantizeLinear": 1, "Gemm": 1}


def test_a_quantized_bias_takes_a_scale(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    bias = g.op("DequantizeLinear", g.constant(rng.integers(-999, 999, 6).astype(np.int32), "b"), np.array(0.01))
    y = g.op("Conv", g.input("x", ["N", 4, 5]), weight(g, rng, (6, 4, 3)), bias)
    g.output(g.op("Mul", y, rng.normal(size=(6, 1))))
    assert fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING).ops == {"DequantizeLinear": 2, "Conv": 1}


@pytest.mark.parametrize("place", ["behind", "in front"])
def test_a_shift_of_broken_steps_makes_a_quantized_bias_one_of_floats(graph, fold, place):
    """b' = (b + sum W t_x - t_y) / s_y in float64, rounded once; the row says what rounding it to steps would move."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    whole, step = rng.integers(-999, 999, 6).astype(np.int32), np.float32(0.01)
    bias = g.op("DequantizeLinear", g.constant(whole, "b"), step)
    integers, size = rng.integers(-99, 99, (6, 4, 3)).astype(np.int8), np.float32(0.03)
    w = g.op("DequantizeLinear", g.constant(integers, "w"), size)
    shift = rng.normal(size=(6 if place == "behind" else 4, 1)).astype(np.float32)
    x = g.input("x", ["N", 4, 5])
    x = g.op("Add", x, shift) if place == "in front" else x
    y = g.op("Conv", x, w, bias, name="conv")
    g.output(g.op("Add", y, shift) if place == "behind" else y)
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    assert result.ops == {"DequantizeLinear": 1, "Conv": 1}
    conv = next(node for node in result.after.graph.node if node.op_type == "Conv")
    moved = shift[:, 0].astype(np.float64)
    if place == "in front":
        moved = (integers.astype(np.float64) * np.float64(size) * moved[:, None]).sum((1, 2))
    found = result.weight(conv.input[2])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, whole * np.float64(step) + moved, rtol=2.0**-24, atol=0)
    lost = np.abs(moved / np.float64(step) - np.rint(moved / np.float64(step)))
    [reason] = [row.reason for row in result.ledger]
    assert "the bias of Conv 'conv' is stored in float now: " in reason
    assert (
        f"steps of its int32; a runtime that rounds it to such steps moves it by at most {lost.max():.2g} of one"
        in reason
    )


@given(SEED, st.sampled_from(["behind", "in front", "both"]), st.booleans())
def test_whole_steps_go_into_a_quantized_bias(graph, fold, seed, where, one_step):
    """b = d B, d the input's step times the weight's: a shift of n d makes it d (B + n), times a sign and a scale."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    steps = np.float32(0.0625) if one_step else (2.0 ** rng.integers(-7, -2, 6)).astype(np.float32)
    whole = rng.integers(-999, 999, 6).astype(np.int32)
    bias = g.op("DequantizeLinear", g.constant(whole, "b"), steps, axis=0)
    w = rng.integers(-9, 9, (6, 4, 3)).astype(np.int8)
    weights = g.op("DequantizeLinear", g.constant(w, "w"), np.float32(0.03125))
    x, front, behind = g.input("x", ["N", 4, 5]), np.zeros(4), np.zeros(6)
    if where != "behind":
        front = 1.0 * rng.integers(-1, 2, 4)
        front[0] = 1  # a sum over integers, over 32
        x = g.op("Add", x, front.reshape(4, 1))
    y = g.op("Conv", x, weights, bias, name="conv")
    scale = rng.choice([-1, 1], 6) * rng.uniform(0.5, 2, 6)
    if where != "in front":
        behind = rng.integers(-50, 50, 6) * steps
        y = g.op("Add", y, behind.reshape(6, 1))
    g.output(g.op("Mul", y, scale.reshape(6, 1)))
    result = fold(g)
    moved = (w.astype(np.int64).sum(2) * front).sum(1) / 32 + behind
    added = moved / steps
    if not np.array_equal(added, np.rint(added)):
        result.agree(g.feeds(rng, N=2), ROUNDING)
        return
    assert set(result.agree(g.feeds(rng, N=2), ROUNDING).actions) == {"folded"}, list(result.ledger)
    assert result.ops == {"DequantizeLinear": 2, "Conv": 1}
    conv = next(node for node in result.after.graph.node if node.op_type == "Conv")
    restored = next(node for node in result.after.graph.node if node.output[0] == conv.input[2])
    stored = result.weight(restored.input[0])
    assert stored.dtype == np.int32
    np.testing.assert_array_equal(stored, np.sign(scale) * (whole + added))


@given(SEED)
def test_a_norm_whose_parameters_are_stored_in_integers(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    y = g.op("Conv", g.input("x", ["N", 4, 5]), weight(g, rng, (6, 4, 3)), rng.normal(size=6))
    parameters = [weight(g, rng, (6,), name=name) for name in ("scale", "shift", "mean")]
    variance = weight(g, rng, (6,), name="variance", low=1)
    g.output(g.op("BatchNormalization", y, *parameters, variance))
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    assert result.ops == {"DequantizeLinear": 1, "Conv": 1}


def test_the_least_integer_has_no_opposite(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    y = g.op("Conv", g.input("x", ["N", 4, 5]), weight(g, rng, (6, 4, 3), low=-128, name="w"))
    stored = next(item for item in g.initializers if item.name == "w")
    assert -128 in np.frombuffer(stored.raw_data, np.int8)
    g.output(g.op("Mul", y, -np.ones((6, 1))))
    fold(g).kept("the number -128 of DequantizeLinear 'w.dequantized' has no opposite in int8").agree(g.feeds(rng, N=2))


def test_the_least_integer_stays_where_the_scale_is_positive(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    y = g.op("Conv", g.input("x", ["N", 4, 5]), weight(g, rng, (6, 4, 3), low=-128))
    g.output(g.batch_norm(y, 6, rng, positive=True))
    fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)


def test_a_scale_of_zero_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    y = g.op("Conv", g.input("x", ["N", 4, 5]), weight(g, rng, (6, 4, 3)))
    g.output(g.op("Mul", y, np.arange(6.0).reshape(6, 1)))
    fold(g).kept("would be left without a step by a scale of 0").agree(g.feeds(rng, N=2), ROUNDING)


def test_steps_along_another_axis_are_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    w = weight(g, rng, (4, 6), axis=0)
    g.output(g.op("Mul", g.op("MatMul", g.input("x", ["N", 3, 4]), w), rng.normal(size=6)))
    fold(g).kept("in front of it MatMul 'matmul_1' has integer weights whose steps do not vary along with it").agree(
        g.feeds(rng, N=2), ROUNDING
    )


def test_a_grouped_transposed_convolution_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    y = g.op("ConvTranspose", g.input("x", ["N", 4, 5]), weight(g, rng, (4, 3, 3)), group=2, name="up")
    g.output(g.batch_norm(y, 6, rng))
    fold(g).kept("in front of it ConvTranspose 'up' has integer weights whose steps do not vary along with it").agree(
        g.feeds(rng, N=2), ROUNDING
    )


def test_quantized_activations_are_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    y = g.op("Conv", g.input("x", ["N", 4, 5]), rng.normal(size=(6, 4, 3)))
    y = g.op("QuantizeLinear", y, np.array(0.05), g.constant(np.array(0, np.int8), "z"))
    y = g.op("DequantizeLinear", y, np.array(0.05), "z", name="activations")
    g.output(g.batch_norm(y, 6, rng))
    fold(g).kept("in front of it DequantizeLinear 'activations' has no weights")


KINDS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]


def linear(g, x, kind, *, rng, steps="one", bias=False, name="linear"):
    """A linear operator from 4 to 6 features whose weight is stored in integers.

    Args:
        steps: one, or one per input or output.
    """
    shape, outputs = {"Conv": ((6, 4, 1), 0), "ConvTranspose": ((4, 6, 1), 1)}.get(kind, ((4, 6), 1))
    axis = {"one": None, "outputs": outputs, "inputs": 1 - outputs}[steps]
    w = weight(g, rng, shape, axis=axis)
    if kind == "MatMul":
        y = g.op(kind, x, w, name=name)
        return g.op("Add", y, rng.normal(size=6)) if bias else y
    return g.op(kind, x, w, *([rng.normal(size=6)] if bias else []), name=name)


def features(g, kind):
    """An input of 4 features, and the shape of what varies along them."""
    shape = {"Gemm": ["N", 4], "MatMul": ["N", 3, 4]}.get(kind, ["N", 4, 5])
    return g.input("x", shape), (4,) if kind in ("Gemm", "MatMul") else (4, 1)


@given(
    SEED,
    st.sampled_from(KINDS),
    st.sampled_from(["one", "outputs", "inputs"]),
    st.booleans(),
    st.sampled_from(["scale", "shift", "both"]),
    st.booleans(),
)
def test_in_front_of_a_quantized_weight(graph, fold, seed, kind, steps, bias, parts, negative):
    """One number as scale, or steps per input; the shift goes into the float bias, in float64."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    x, shape = features(g, kind)
    size = rng.uniform(0.5, 2, shape if steps == "inputs" else ())
    shift = parts != "scale"
    x = x if parts == "shift" else g.op("Mul", x, -size if negative else size)
    x = g.op("Add", x, rng.normal(size=shape)) if shift else x
    g.output(linear(g, x, kind, rng=rng, steps=steps, bias=bias))
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    added = {"Add": 1} if kind == "MatMul" and (bias or shift) else {}
    assert result.ops == {"DequantizeLinear": 1, kind: 1} | added
    dequantize = next(node for node in result.after.graph.node if node.op_type == "DequantizeLinear")
    assert result.weight(dequantize.input[0]).dtype == np.int8
    assert (result.weight(dequantize.input[1]) > 0).all()


@pytest.mark.parametrize("steps", ["one", "outputs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_per_input_needs_a_step_per_input(graph, fold, kind, steps):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    x, shape = features(g, kind)
    x = g.op("Mul", x, rng.normal(size=shape))
    g.output(linear(g, x, kind, rng=rng, steps=steps))
    fold(g).kept(f"behind it {kind} 'linear' has integer weights whose steps do not vary along with it").agree(
        g.feeds(rng, N=2), ROUNDING
    )


def test_a_scale_in_front_leaves_a_quantized_addend_of_a_product(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    x = g.op("Mul", g.input("x", ["N", 4]), np.array(1.5))
    whole = rng.integers(-999, 999, 6).astype(np.int32)
    bias = g.op("DequantizeLinear", g.constant(whole, "b"), np.array(0.01))
    g.output(g.op("Gemm", x, weight(g, rng, (4, 6)), bias, name="linear"))
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    np.testing.assert_array_equal(result.weight("b"), whole)


def test_steps_in_blocks_take_one_number_in_front(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=21)
    w = g.op(
        "DequantizeLinear",
        g.constant(rng.integers(-7, 8, (4, 6)).astype(np.int8), "w"),
        rng.uniform(0.01, 0.1, (2, 6)),
        axis=0,
        block_size=2,
    )
    x = g.op("Add", g.op("Mul", g.input("x", ["N", 3, 4]), np.array(0.5)), rng.normal(size=4))
    g.output(g.op("MatMul", x, w))
    result = fold(g).folded().agree(g.feeds(rng, N=2), ROUNDING)
    assert result.ops == {"DequantizeLinear": 1, "MatMul": 1, "Add": 1}


@pytest.mark.parametrize("axis", [0, 1])
def test_steps_in_blocks(graph, fold, axis):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=21)
    integers = rng.integers(-127, 127, (4, 6)).astype(np.int8)
    steps = rng.uniform(0.01, 0.1, (2, 6) if axis == 0 else (4, 3))
    w = g.op("DequantizeLinear", g.constant(integers, "w"), steps, axis=axis, block_size=2)
    y = g.op("MatMul", g.input("x", ["N", 3, 4]), w)
    g.output(g.op("Mul", y, rng.choice([-1, 1], 6) * rng.uniform(0.5, 2, 6)))
    result = fold(g).agree(g.feeds(rng, N=2), ROUNDING)
    if axis == 0:
        assert result.folded().ops == {"DequantizeLinear": 1, "MatMul": 1}
    else:
        result.kept("has integer weights whose steps do not vary along with it")


@given(SEED, st.booleans(), st.sampled_from(["scale", "shift", "both"]))
def test_a_map_of_the_rows_crosses_a_product_by_integers(graph, fold, seed, per_column, parts):
    """(s x + t) W = s (x W) + t W, with W as its integers stand for it; what follows takes it."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    x = g.input("x", ["N", 5, 4])
    x = x if parts == "shift" else g.op("Mul", x, rng.normal(size=(5, 1)))
    x = x if parts == "scale" else g.op("Add", x, rng.normal(size=(5, 1)))
    y = g.op("MatMul", x, weight(g, rng, (4, 3), axis=1 if per_column else None))
    g.output(g.op("MatMul", rng.normal(size=(2, 5)), y))
    result = fold(g).folded().agree(g.feeds(rng, N=3), ROUNDING)
    assert result.ops["Mul"] == 0


@given(SEED, st.booleans(), st.booleans(), st.booleans())
def test_a_quantized_convolution_takes_the_norm_between_it_and_its_quantization(
    graph, fold, seed, per_channel, bias, relu
):
    """Q -> DQ -> Conv of int8 -> BatchNorm -> Relu -> Q -> DQ: the norm goes into steps and bias, the grids stay."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    grid = (np.array(0.02), g.constant(np.array(3, np.int8), "middle"))
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", g.input("x", ["N", 4, 7]), *grid), *grid)
    operands = [weight(g, rng, (6, 4, 3), axis=0 if per_channel else None), *([rng.normal(size=6)] if bias else [])]
    y = g.batch_norm(g.op("Conv", x, *operands, pads=[1, 1]), 6, rng)
    y = g.op("Relu", y) if relu else y
    result_grid = (np.array(0.25), g.constant(np.array(-100, np.int8), "low"))
    g.output(g.op("DequantizeLinear", g.op("QuantizeLinear", y, *result_grid), *result_grid))
    result = fold(g).folded()
    assert "BatchNormalization" not in result.ops
    assert result.ops["QuantizeLinear"] == 2
    assert result.ops["DequantizeLinear"] == 3
    assert result.ops["Conv"] == 1
    result.agree(g.feeds(rng, N=2), ROUNDING)
