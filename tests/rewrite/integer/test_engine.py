"""Quantized layers written on integers, run by onnxruntime, against integers recomputed exactly from the source."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_kinds import kinds
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_outputs import run_onnxruntime

import normdeploy as nd
from normdeploy.rewrite import rewrite

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


class Net:
    """A graph under construction; constants are NumPy arrays in the place of names."""

    def __init__(self) -> None:
        self.nodes, self.constants, self.inputs, self.outputs = [], {}, [], []

    def input(self, name, dtype, shape):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def op(self, kind, *operands, **attributes):
        names = []
        for operand in operands:
            if isinstance(operand, np.ndarray | np.generic):
                name = f"c{len(self.constants)}"
                self.constants[name] = np.asarray(operand)
                operand = name
            names.append(operand)
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [result], name=f"{kind}_{len(self.nodes)}", **attributes))
        return result

    def model(self, result, dtype=TensorProto.UINT8, rank=4):
        output = helper.make_tensor_value_info(result, dtype, [f"d{i}" for i in range(rank)])
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", self.inputs, [output], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def folded(model, *, integer=True):
    result = rewrite(ir.from_proto(model), integer=integer)
    return ir.to_proto(result.model), result.ledger


def run(model, feeds):
    return run_onnxruntime(model, feeds)[0]


def float_operators(model):
    """Names of operators that read or write a float, by onnx's own inference."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    kinds = {
        v.name: v.type.tensor_type.elem_type
        for v in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    }
    kinds |= {t.name: t.data_type for t in inferred.graph.initializer}
    return [n.op_type for n in inferred.graph.node if any(kinds.get(v) in FLOATS for v in (*n.input, *n.output))]


def f32(array):
    return np.asarray(array, np.float32)


def near_tie(x):
    return abs(float(x - math.floor(x)) - 0.5) < 1e-9


def level(x, zero, low, high):
    """round(x) + zero, halves to even, cut; x exact."""
    below = math.floor(x)
    rest = x - below
    half = Fraction(1, 2)
    whole = below if rest < half or (rest == half and below % 2 == 0) else below + 1
    return min(max(whole + zero, low), high)


def compare(got, exact, zero, low, high):
    """Every integer against the exact quotients (an object array of fractions) that they are rounded from."""
    assert got.shape == exact.shape
    for g, x in zip(got.reshape(-1).tolist(), exact.reshape(-1).tolist(), strict=True):
        if near_tie(x):  # constants of a norm are irrational; float64 may put them on either side
            continue
        assert g == level(x, zero, low, high)


def activation(kind, net, x, exact):
    if kind == "relu":
        return net.op("Relu", x), np.vectorize(lambda v: max(v, Fraction(0)), otypes=[object])(exact)
    if kind == "leaky":
        slope = Fraction(float(np.float32(0.125)))
        return net.op("LeakyRelu", x, alpha=0.125), np.vectorize(lambda v: v if v > 0 else slope * v, otypes=[object])(
            exact
        )
    if kind == "clip":
        ends = np.float32(-0.5), np.float32(2.25)
        cut = np.vectorize(lambda v: min(max(v, Fraction(float(ends[0]))), Fraction(float(ends[1]))), otypes=[object])
        return net.op("Clip", x, *ends), cut(exact)
    return x, exact


def fractions(array):
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(np.asarray(array, np.float64))


@st.composite
def settings_of(draw):
    return {
        "rng": np.random.default_rng(draw(SEED)),
        "x_kind": draw(st.sampled_from([np.uint8, np.int8])),
        "w_kind": draw(st.sampled_from([np.uint8, np.int8])),
        "y_kind": draw(st.sampled_from([np.uint8, np.int8])),
        "per_channel": draw(st.booleans()),
        "signs": draw(st.sampled_from(["positive", "mixed", "zero"])),
        "act": draw(st.sampled_from(["none", "relu", "leaky", "clip"])),
        "narrow": draw(st.booleans()),
        "bias": draw(st.sampled_from(["none", "float", "int32"])),
        "step": draw(st.sampled_from([0.5, 0.0371, 4.0])),
        "pads": draw(st.integers(0, 1)),
    }


def source(s, net, shape):
    """Integers at the graph's input, dequantized; and what they are less their zero point."""
    info = np.iinfo(s["x_kind"])
    zero = int(s["rng"].integers(info.min, info.max + 1))
    x = net.input("x", helper.np_dtype_to_tensor_dtype(np.dtype(s["x_kind"])), shape)
    step = np.float32(s["rng"].choice([0.25, 0.0173]))
    q = s["rng"].integers(info.min, info.max + 1, shape).astype(s["x_kind"])
    q[0], q[1] = info.min, info.max
    return (
        net.op("DequantizeLinear", x, step, np.array(zero, s["x_kind"])),
        q,
        q.astype(np.int64) - zero,
        Fraction(float(step)),
    )


def weights(s, net, shape, axis):
    info = np.iinfo(s["w_kind"])
    # the least integer has no opposite in a byte: test_a_quantizer_that_stays_says_why
    q = s["rng"].integers(info.min + 1, info.max + 1, shape).astype(s["w_kind"])
    count = shape[axis] if s["per_channel"] else 1
    steps = f32(s["rng"].uniform(0.001, 0.02, count))
    zero = 0 if s["w_kind"] == np.int8 else 128
    steps = steps if s["per_channel"] else steps[0]
    zeros = np.full(np.shape(steps), zero, s["w_kind"])
    w = net.op("DequantizeLinear", q, steps, zeros, axis=axis)
    exact = fractions(np.broadcast_to(np.reshape(steps, -1), (shape[axis],)))
    return w, q.astype(np.int64) - zero, exact


def norm(s, net, x, exact, count):
    rng = s["rng"]
    scale = rng.uniform(0.3, 2, count) * (rng.choice([-1, 1], count) if s["signs"] != "positive" else 1)
    if s["signs"] == "zero":
        scale[0] = 0
    scale, shift, mean, var = (
        f32(scale),
        f32(rng.normal(size=count)),
        f32(rng.normal(size=count)),
        f32(rng.uniform(0.2, 3, count)),
    )
    y = net.op("BatchNormalization", x, scale, shift, mean, var, epsilon=1e-3)
    a = scale.astype(np.float64) / np.sqrt(var.astype(np.float64) + float(np.float32(1e-3)))
    b = shift.astype(np.float64) - a * mean.astype(np.float64)
    place = (1, -1) + (1,) * (exact.ndim - 2)
    return y, fractions(a).reshape(place) * exact + fractions(b).reshape(place)


def quantizer(s, net, x, exact):
    info = np.iinfo(s["y_kind"])
    zero, step = (
        int(s["rng"].integers(-3, 4)) if s["y_kind"] == np.int8 else int(s["rng"].integers(0, 130)),
        np.float32(s["step"]),
    )
    q = net.op("QuantizeLinear", x, step, np.array(zero, s["y_kind"]))
    low, high = info.min, info.max
    if s["narrow"]:
        low, high = (0, 15) if s["y_kind"] == np.uint8 else (-7, 7)
        q = net.op("Clip", q, np.array(low, s["y_kind"]), np.array(high, s["y_kind"]))
    return q, exact / Fraction(float(step)), zero, low, high


def with_bias(s, net, exact, count, steps, x_step, axis):
    """The bias operand, if there is one, and the exact sums with it."""
    if s["bias"] == "none":
        return [], exact
    place = [1] * exact.ndim
    place[axis] = count
    if s["bias"] == "float":
        bias = f32(s["rng"].normal(size=count))
        return [bias], exact + fractions(bias).reshape(place)
    step = f32([float(step * x_step) for step in steps])
    whole = s["rng"].integers(-5000, 5000, count).astype(np.int32)
    value = net.op("DequantizeLinear", whole, step, np.zeros(count, np.int32), axis=0)
    return [value], exact + (fractions(whole) * fractions(step)).reshape(place)


@given(settings_of())
def test_convolutions_norms_and_quantizers(s):
    net = Net()
    x, q, centred, x_step = source(s, net, (3, 4, 5, 5))
    w, whole, steps = weights(s, net, (6, 2, 3, 3), 0)
    padded = np.pad(centred, ((0, 0), (0, 0), (s["pads"],) * 2, (s["pads"],) * 2))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    sums = np.concatenate(
        [np.einsum("nchwij,ocij->nohw", views[:, 2 * g : 2 * g + 2], whole[3 * g : 3 * g + 3]) for g in range(2)],
        axis=1,
    )
    exact = fractions(sums) * steps.reshape(1, -1, 1, 1) * x_step
    bias, exact = with_bias(s, net, exact, 6, steps, x_step, 1)
    y = net.op("Conv", x, w, *bias, group=2, pads=[s["pads"]] * 4)
    y, exact = norm(s, net, y, exact, 6)
    y, exact = activation(s["act"], net, y, exact)
    y, exact, zero, low, high = quantizer(s, net, y, exact)
    made, ledger = folded(net.model(y, helper.np_dtype_to_tensor_dtype(np.dtype(s["y_kind"]))))
    assert not float_operators(made)
    assert not list(ledger.kept)
    compare(run(made, {"x": q}), exact, zero, low, high)


@given(settings_of(), st.sampled_from(["Gemm", "MatMul"]))
def test_products(s, kind):
    net = Net()
    x, q, centred, x_step = source(s, net, (5, 7))
    turned = kind == "Gemm"
    w, whole, steps = weights(s, net, (6, 7) if turned else (7, 6), 0 if turned else 1)
    exact = fractions(centred @ (whole.T if turned else whole)) * steps * x_step
    if turned:
        exact = exact * Fraction(1, 2)
        bias = f32(s["rng"].normal(size=6))
        y = net.op("Gemm", x, w, bias, transB=1, alpha=0.5, beta=2.0)
        exact = exact + 2 * fractions(bias)
    else:
        y = net.op("MatMul", x, w)
        if s["bias"] == "float":
            bias = f32(s["rng"].normal(size=6))
            y, exact = net.op("Add", y, bias), exact + fractions(bias)
    y, exact = norm(s, net, y, exact, 6)
    y, exact = activation(s["act"], net, y, exact)
    y, exact, zero, low, high = quantizer(s, net, y, exact)
    made, _ = folded(net.model(y, helper.np_dtype_to_tensor_dtype(np.dtype(s["y_kind"])), 2))
    assert not float_operators(made)
    compare(run(made, {"x": q}), exact, zero, low, high)


@given(settings_of())
def test_a_norm_between_two_quantizers_is_a_function_of_the_first_ones_integers(s):
    """The rounding of the inner quantizer is kept: nothing is moved across it."""
    net = Net()
    x, q, centred, x_step = source(s, net, (3, 4, 5, 5))
    w, whole, steps = weights(s, net, (4, 4, 1, 1), 0)
    exact = fractions(np.einsum("nchw,oc->nohw", centred, whole[:, :, 0, 0])) * steps.reshape(1, -1, 1, 1) * x_step
    y = net.op("Conv", x, w)
    step, zero = np.float32(0.53), 7
    inner = np.vectorize(lambda v: Fraction(level(v / Fraction(float(step)), zero, -128, 127) - zero), otypes=[object])
    y = net.op(
        "DequantizeLinear", net.op("QuantizeLinear", y, step, np.array(zero, np.int8)), step, np.array(zero, np.int8)
    )
    exact = inner(exact) * Fraction(float(step))
    y, exact = norm(s, net, y, exact, 4)
    y, exact = activation(s["act"], net, y, exact)
    y, exact, zero, low, high = quantizer(s, net, y, exact)
    made, _ = folded(net.model(y, helper.np_dtype_to_tensor_dtype(np.dtype(s["y_kind"]))))
    assert not float_operators(made)
    compare(run(made, {"x": q}), exact, zero, low, high)


@given(settings_of())
def test_a_norm_of_integers_and_a_quantizer(s):
    net = Net()
    x, q, centred, x_step = source(s, net, (256, 3, 1, 1))
    info = np.iinfo(s["x_kind"])
    q[...] = np.arange(info.min, info.max + 1).reshape(-1, 1, 1, 1)  # all there are
    zero = q.astype(np.int64) - centred
    del zero
    offset = int(net.constants[net.nodes[0].input[2]])
    y, exact = norm(s, net, x, fractions(q.astype(np.int64) - offset) * x_step, 3)
    y, exact = activation(s["act"], net, y, exact)
    y, exact, zero, low, high = quantizer(s, net, y, exact)
    made, _ = folded(net.model(y, helper.np_dtype_to_tensor_dtype(np.dtype(s["y_kind"]))))
    assert not float_operators(made)
    compare(run(made, {"x": q}), exact, zero, low, high)


def conv_and_scale(net, factor, *, steps=0.5, kind="uint8"):
    x = net.input("x", TensorProto.UINT8, [2, 2, 4, 4])
    real = net.op("DequantizeLinear", x, np.float32(0.5), np.array(0, np.uint8))
    w = net.op(
        "DequantizeLinear", np.arange(-4, 4, dtype=np.int8).reshape(4, 2, 1, 1), np.float32(0.25), np.array(0, np.int8)
    )
    y = net.op("Conv", real, w)
    return y if factor is None else net.op("Mul", y, f32(factor))


def test_ties_are_rounded_to_even_on_integers_too():
    """Steps that are powers of two: half of all sums lie on a tie."""
    net = Net()
    y = net.op("QuantizeLinear", conv_and_scale(net, None), np.float32(0.25), np.array(3, np.int8))
    made, _ = folded(net.model(y, TensorProto.INT8))
    x = np.random.default_rng(0).integers(0, 256, (2, 2, 4, 4)).astype(np.uint8)
    sums = np.einsum("nchw,oc->nohw", x.astype(np.int64), np.arange(-4, 4).reshape(4, 2))
    assert (sums % 2 != 0).any()
    expected = np.clip(np.rint(sums / 2) + 3, -128, 127)  # all exact in float64
    np.testing.assert_array_equal(run(made, {"x": x}), expected)
    assert "Gather" in kinds(made)  # a search among thresholds: no multiplier has halves to even


def test_pools_and_views_are_done_on_integers():
    net = Net()
    y = net.op(
        "MaxPool",
        net.op("Relu", conv_and_scale(net, [[[0.5]], [[1]], [[2]], [[3]]])),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    y = net.op("QuantizeLinear", net.op("Flatten", y), np.float32(0.75), np.array(0, np.uint8))
    made, _ = folded(net.model(y, rank=2))
    assert not float_operators(made)
    x = np.random.default_rng(0).integers(0, 256, (2, 2, 4, 4)).astype(np.uint8)
    sums = np.einsum("nchw,oc->nohw", x.astype(np.int64), np.arange(-4, 4).reshape(4, 2)) * 0.125
    real = np.maximum(sums * np.array([0.5, 1, 2, 3]).reshape(-1, 1, 1), 0).reshape(2, 4, 2, 2, 2, 2).max((3, 5))
    np.testing.assert_array_equal(run(made, {"x": x}), np.clip(np.rint(real.reshape(2, -1) / 0.75), 0, 255))


def test_the_same_integers_again_are_not_computed():
    net = Net()
    y = net.op("QuantizeLinear", net.op("Relu", conv_and_scale(net, None)), np.float32(0.7), np.array(0, np.uint8))
    back = net.op("MaxPool", net.op("DequantizeLinear", y, np.float32(0.7), np.array(0, np.uint8)), kernel_shape=[2, 2])
    net.op("Identity", y)
    y = net.op("QuantizeLinear", back, np.float32(0.7), np.array(0, np.uint8))
    made, _ = folded(net.model(y))
    assert kinds(made).count("ConvInteger") == 1
    assert "DequantizeLinear" not in kinds(made)


def test_sums_that_the_graph_has_on_integers():
    net = Net()
    x = net.input("x", TensorProto.UINT8, [4, 5])
    w = np.random.default_rng(1).integers(-128, 128, (5, 3)).astype(np.int8)
    y = net.op("Cast", net.op("MatMulInteger", x, w, np.array(9, np.uint8)), to=TensorProto.FLOAT)
    y = net.op("Relu", net.op("Add", net.op("Mul", y, f32([0.01, -0.02, 0.03])), f32([1, 2, 3])))
    y = net.op("QuantizeLinear", y, np.float32(0.11), np.array(2, np.uint8))
    made, _ = folded(net.model(y, rank=2))
    assert not float_operators(made)
    q = np.random.default_rng(2).integers(0, 256, (4, 5)).astype(np.uint8)
    sums = fractions((q.astype(np.int64) - 9) @ w.astype(np.int64))
    exact = sums * fractions(f32([0.01, -0.02, 0.03])) + fractions([1, 2, 3])
    exact = np.vectorize(lambda v: max(v, Fraction(0)), otypes=[object])(exact) / Fraction(float(np.float32(0.11)))
    compare(run(made, {"x": q}), exact, 2, 0, 255)


def test_what_reads_a_layer_as_floats_gets_one_map_of_its_sums():
    net = Net()
    y = conv_and_scale(net, None)
    made, _ = folded(net.model(y, TensorProto.FLOAT))
    assert kinds(made) == ["ConvInteger", "Cast", "Mul"]
    x = np.full((2, 2, 4, 4), 255, np.uint8)
    expected = np.einsum("nchw,oc->nohw", x * 0.5, np.arange(-4, 4).reshape(4, 2) * 0.25)
    np.testing.assert_allclose(run(made, {"x": x}), expected, rtol=1e-6)


def test_nothing_is_written_on_integers_unless_asked_for():
    net = Net()
    y = net.op("QuantizeLinear", net.op("Relu", conv_and_scale(net, None)), np.float32(0.7), np.array(0, np.uint8))
    made, ledger = folded(net.model(y), integer=False)
    assert "ConvInteger" not in kinds(made)
    assert not [row for row in ledger if row.kind == "quantizer"]


def refused(net, y):
    _, ledger = folded(net.model(y))
    rows = [row for row in ledger if row.kind == "quantizer" and row.action == "kept"]
    assert rows
    return rows[-1].reason


def images(net, kind):
    return net.input("x", kind, [2, 2, 4, 4])


def falling_pool(net):
    return net.op("Mul", net.op("MaxPool", conv_and_scale(net, None), kernel_shape=[2, 2]), np.float32(-2))


def read_twice(net):
    y = net.op("Relu", conv_and_scale(net, None))
    return net.op("Relu", net.op("Sub", y, net.op("Sigmoid", y)))


def float_weights(net):
    x = net.op("DequantizeLinear", images(net, TensorProto.UINT8), np.float32(0.5), np.array(0, np.uint8))
    return net.op("Conv", x, np.random.default_rng(0).normal(size=(4, 2, 1, 1)).astype(np.float32))


def blocks(net):
    x = net.op("DequantizeLinear", images(net, TensorProto.UINT8), np.float32(0.5), np.array(0, np.uint8))
    whole, steps = np.ones((4, 2, 1, 1), np.int8), np.full((4, 2, 1, 1), 0.5, np.float32)
    return net.op("Conv", x, net.op("DequantizeLinear", whole, steps, axis=1, block_size=1))


def no_opposite(net):
    """One channel rises and has -128, the other falls and would have 128."""
    x = net.op("DequantizeLinear", images(net, TensorProto.UINT8), np.float32(0.5), np.array(0, np.uint8))
    w = net.op("DequantizeLinear", np.full((2, 2, 1, 1), -128, np.int8), np.float32(0.5), np.array(0, np.int8))
    one = np.ones(2, np.float32)
    return net.op("BatchNormalization", net.op("Conv", x, w), f32([1, -1]), one, one, one)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (no_opposite, "weights are integers from -128 to 128, which no byte holds"),
        (lambda net: images(net, TensorProto.FLOAT), "it reads what the graph is given"),
        (falling_pool, "MaxPool '[^']*' in front of it is followed by a negative scale"),
        (read_twice, "Sub '[^']*' in front of it is no map, clamp or pool"),
        (lambda net: net.op("Sigmoid", conv_and_scale(net, None)), "Sigmoid '[^']*' in front of it is no map"),
        (lambda net: net.op("LeakyRelu", conv_and_scale(net, None), alpha=-0.5), "has a negative slope"),
        (lambda net: net.op("Conv", images(net, TensorProto.FLOAT), np.ones((4, 2, 1, 1), np.float32)), "no integers"),
        (float_weights, "no integers of at most 127 times a step per channel"),
        (blocks, "steps per block of weights"),
    ],
)
def test_a_quantizer_that_stays_says_why(build, reason):
    net = Net()
    y = net.op("QuantizeLinear", build(net), np.float32(0.5), np.array(0, np.uint8))
    assert re.search(reason, refused(net, y))


def test_a_layer_that_others_read_keeps_its_quantizer_and_says_who():
    net = Net()
    y = conv_and_scale(net, None)
    real = net.op("Sigmoid", y)
    y = net.op("QuantizeLinear", y, np.float32(0.5), np.array(0, np.uint8))
    model = net.model(y)
    model.graph.output.append(helper.make_tensor_value_info(real, TensorProto.FLOAT, list("nchw")))
    made, ledger = folded(model)
    (row,) = [row for row in ledger if row.kind == "quantizer"]
    assert re.search("Conv '[^']*' in front of it is read by Sigmoid '[^']*' too", row.reason)
    assert kinds(made).count("ConvInteger") == 1  # its sums serve both


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "how",
    [
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"pads": [1, 0, 0, 1]},
        {"pads": [1, 1, 1, 1], "dilations": [2, 1]},
        {"pads": [1, 0, 1, 0], "strides": [2, 3], "ceil_mode": 1},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
    ids=str,
)
def test_a_pool_on_integers_never_chooses_its_padding(how, dtype, tmp_path):
    """Sums below 0 and a zero point in the middle: padding of 0, or of the zero point, would be the largest there."""
    zero = np.array(100 if dtype is np.uint8 else -5, dtype)
    net = Net()
    y = net.op("Sub", conv_and_scale(net, [[[0.5]], [[1]], [[2]], [[3]]]), f32(20.1))
    y = net.op("MaxPool", y, kernel_shape=[2, 2] if "dilations" not in how else [3, 2], **how)
    y = net.op("QuantizeLinear", y, np.float32(0.75), zero)
    model = net.model(y, TensorProto.UINT8 if dtype is np.uint8 else TensorProto.INT8)
    made, _ = folded(model)
    assert not float_operators(made)
    assert "MaxPool" in kinds(made)
    x = np.random.default_rng(0).integers(0, 256, (2, 2, 4, 4)).astype(np.uint8)
    sums = np.einsum("nchw,oc->nohw", x.astype(np.int64), np.arange(-4, 4).reshape(4, 2)) * 0.125
    real = sums * np.array([0.5, 1, 2, 3]).reshape(-1, 1, 1) - np.float64(np.float32(20.1))
    assert real.max(axis=(2, 3)).min() < 0
    got = run(made, {"x": x})
    size = got.shape[2:]
    begin = how["pads"][:2] if "pads" in how else [0, 0]
    (high, wide), step, gap = [2 + ("dilations" in how), 2], how.get("strides", [1, 1]), how.get("dilations", [1, 1])
    expected = np.full((2, 4, *size), -np.inf)
    for row, column in np.ndindex(*size):
        for i, j in np.ndindex(high, wide):
            r, c = row * step[0] + i * gap[0] - begin[0], column * step[1] + j * gap[1] - begin[1]
            if 0 <= r < 4 and 0 <= c < 4:
                expected[:, :, row, column] = np.maximum(expected[:, :, row, column], real[:, :, r, c])
    info = np.iinfo(dtype)
    np.testing.assert_array_equal(got, np.clip(np.rint(expected / 0.75) + int(zero), info.min, info.max))
    np.testing.assert_array_equal(run(model, {"x": x}), got)
    paths = tmp_path / "source.onnx", tmp_path / "made.onnx"
    for path, proto in zip(paths, (model, made), strict=True):
        onnx.save(proto, path)
    verdict = nd.verify(*paths, level="quick")
    assert verdict.status in ("pass", "not-exercised"), verdict.summary()
