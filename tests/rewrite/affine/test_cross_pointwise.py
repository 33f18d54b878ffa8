"""Maps cross sums, products, pools, reductions, pads, activations and casts, or stay and say why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
BOOL = st.booleans()
RANK = st.integers(1, 3)
DTYPES = st.sampled_from([np.float64, np.float32, np.float16])


def conv(g, x, cin, cout, rng, spatial=2, name=None):
    return g.op("Conv", x, rng.normal(size=(cout, cin, *(1,) * spatial)), name=name)


def positive(rng, shape):
    return rng.uniform(0.5, 2.0, shape)


@given(SEED, st.sampled_from(["Add", "Sub", "Sum"]), RANK, DTYPES)
def test_residual_sums(graph, fold, seed, kind, rank, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    count = 3 if kind == "Sum" else 2
    inputs = [g.input(f"x{index}", ["N", 3, *[4] * rank]) for index in range(count)]
    branches = [conv(g, x, 3, 5, rng, spatial=rank) for x in inputs]
    g.output(g.batch_norm(g.op(kind, *branches), 5, rng))
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert result.ops["BatchNormalization"] == 0


@given(SEED, BOOL)
def test_a_position_embedding_takes_its_part(graph, fold, seed, swapped):
    """The constant varies along two axes: no affine map, but an operand of a sum."""
    rng = np.random.default_rng(seed)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 5, 3]), rng.normal(size=(3, 4)))
    embedding = rng.normal(size=(1, 5, 4))
    y = g.op("Add", *((embedding, y) if swapped else (y, embedding)))
    y = g.op("Add", g.op("Mul", y, rng.normal(size=4)), rng.normal(size=4))
    g.output(y)
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"MatMul": 1, "Add": 1}


def test_a_sum_whose_other_branch_refuses(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, 4, 4])
    y = g.op("Add", conv(g, x, 3, 3, rng), g.op("Sigmoid", x, name="gate"), name="residual")
    g.output(g.batch_norm(y, 3, rng))
    fold(g).kept("in front of it Sigmoid 'gate' has no weights", "tied by Add 'residual'").agree(g.feeds(rng, N=2))


def test_a_sum_with_a_broadcast_branch(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    narrow = conv(g, g.input("y", ["N", 3, 4, 4]), 3, 1, rng)
    y = g.op("Add", conv(g, g.input("x", ["N", 3, 4, 4]), 3, 5, rng), narrow, name="sum")
    g.output(g.batch_norm(y, 5, rng))
    fold(g).kept("tied by Add 'sum'").agree(g.feeds(rng, N=2))


def test_a_shift_crosses_a_sum_forward_and_a_scale_does_not(graph, fold):
    rng = np.random.default_rng(0)
    for kind in ("Add", "Sub"):
        for position in (0, 1):
            g = graph()
            operands = [g.input("x", ["N", 3, 4]), g.input("y", ["N", 3, 4])]
            operands[position] = g.op("Add", operands[position], rng.normal(size=(3, 1)))
            g.output(conv(g, g.op(kind, *operands), 3, 2, rng, spatial=1))
            assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {kind: 1, "Conv": 1}
    g = graph()
    scaled = g.op("Mul", g.input("x", ["N", 3, 4]), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op("Add", scaled, g.input("y", ["N", 3, 4]), name="sum"), 3, 2, rng, spatial=1))
    fold(g).kept("the graph input 'y' is given, and it meets what is behind it in Add 'sum' by another scale").agree(
        g.feeds(rng, N=2)
    )


def test_a_value_read_by_others_keeps_its_producer(graph, fold):
    """A convolution read by a BatchNorm and by something else."""
    rng = np.random.default_rng(0)
    g = graph()
    y = conv(g, g.input("x", ["N", 3, 4, 4]), 3, 3, rng, name="conv")
    g.output(g.op("Relu", g.batch_norm(y, 3, rng)))
    g.output(g.op("Sigmoid", y, name="gate"))
    fold(g).kept("Sigmoid 'gate' sees every scale and every shift").agree(g.feeds(rng, N=2))


def test_a_value_that_is_a_graph_output_keeps_its_producer(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = conv(g, g.input("x", ["N", 3, 4, 4]), 3, 3, rng, name="conv")
    g.output(y)
    g.output(g.op("Relu", g.batch_norm(y, 3, rng)))
    fold(g).kept("the graph output 'conv_out' must stay what it is").agree(g.feeds(rng, N=2))


@given(SEED, BOOL, DTYPES)
def test_products_of_computed_values(graph, fold, seed, behind, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x, gate = g.input("x", ["N", 3, 4]), g.input("gate", ["N", 1, 1])
    factor = rng.normal(size=(3, 1))
    if behind:
        y = g.op("Mul", conv(g, x, 3, 3, rng, spatial=1), gate)
        g.output(g.op("Mul", y, factor))
    else:
        y = g.op("Div", g.op("Mul", x, factor), gate)
        g.output(conv(g, y, 3, 2, rng, spatial=1))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Mul" if behind else "Div": 1}


def test_product_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Mul", conv(g, g.input("x", ["N", 3, 4, 4]), 3, 3, rng), g.input("gate", ["N", 1, 1, 1]), name="gated")
    g.output(g.batch_norm(y, 3, rng))
    fold(g).kept("Mul 'gated' multiplies two values, which leaves no place for a shift").agree(g.feeds(rng, N=2))
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 3, 4]), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op("Div", g.input("y", ["N", 3, 4]), x, name="ratio"), 3, 2, rng, spatial=1))
    # y / (s x) = (y / x) / s: the convolution behind takes 1 / s
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Div": 1, "Conv": 1}
    g = graph()
    x = g.op("Add", g.input("x", ["N", 3, 4]), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op("Div", g.input("y", ["N", 3, 4]), x, name="ratio"), 3, 2, rng, spatial=1))
    fold(g).kept("Div 'ratio' divides, which leaves no place for a shift").agree(g.feeds(rng, N=2))


@st.composite
def pools(draw):
    """A pool of any rank, its window strided, dilated, padded unevenly, rounded up or padded by itself."""
    rank = draw(RANK)
    kind = draw(st.sampled_from(["AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool"]))
    attributes = {}
    if not kind.startswith("Global"):
        kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
        attributes = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 2)) for _ in kernel]}
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in kernel]
        attributes |= draw(
            st.sampled_from(
                [{"pads": [draw(st.integers(0, size - 1)) for size in kernel * 2]}, {"ceil_mode": 1}, {}]
            )
        )  # fmt: skip
    return {"kind": kind, "attributes": attributes, "rank": rank, "dtype": draw(DTYPES), "seed": draw(SEED)}


@given(pools(), BOOL)
def test_pools(graph, fold, case, behind):
    rng = np.random.default_rng(case["seed"])
    g = graph(dtype=case["dtype"], opset=19)
    x = g.input("x", ["N", 3, *[6] * case["rank"]])

    def pool(value):
        return g.op(case["kind"], value, **case["attributes"])

    if behind:
        y = g.batch_norm(pool(conv(g, x, 3, 3, rng, spatial=case["rank"])), 3, rng, positive=True)
    else:
        y = conv(g, pool(g.batch_norm(x, 3, rng, positive=True)), 3, 3, rng, spatial=case["rank"])
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, case["kind"]: 1}


def test_an_average_pool_that_counts_its_padding(graph, fold):
    rng = np.random.default_rng(0)
    for shift, action in ((0.0, "folded"), (1.0, "kept")):
        g = graph()
        y = conv(g, g.input("x", ["N", 3, "H", "W"]), 3, 3, rng)
        y = g.op("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1, name="pool")
        operands = [positive(rng, 3), shift * np.ones(3), np.zeros(3), positive(rng, 3)]
        g.output(g.op("BatchNormalization", y, *operands))
        result = fold(g).agree(g.feeds(rng, N=2, H=5, W=6))
        assert result.actions == [action]
        if action == "kept":
            result.kept("AveragePool 'pool' counts the zeros of its padding, which a shift would change")


def test_order_reversing_channels_block_a_maximum(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MaxPool", conv(g, g.input("x", ["N", 3, 4, 4]), 3, 3, rng), kernel_shape=[2, 2], name="pool")
    g.output(g.op("Mul", y, np.array([1.0, -2.0, 3.0]).reshape(3, 1, 1)))
    words = "channel 1 (1 in all) is scaled by a negative number", "MaxPool 'pool' takes a maximum"
    fold(g).kept(*words).agree(g.feeds(rng, N=2))


def test_indices_of_maxima(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", [1, 3, 4, 4]), 3, rng, positive=True)
    y, indices = g.op("MaxPool", x, kernel_shape=[2, 2], name="pool", outputs=2)
    g.output(conv(g, y, 3, 2, rng))
    g.output(indices, np.int64)
    # the greatest stays where it is under a positive scale of each channel
    result, feeds = fold(g).folded(), g.feeds(rng)
    assert result.ops == {"MaxPool": 1, "Conv": 1}
    (old, at), (new, there) = (ReferenceEvaluator(proto).run(None, feeds) for proto in (result.before, result.after))
    np.testing.assert_allclose(new, old, rtol=1e-10)
    np.testing.assert_array_equal(there, at)


def test_a_map_along_a_pooled_axis(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 3, 4, 4]), rng.normal(size=4))
    g.output(conv(g, g.op("GlobalAveragePool", x, name="pool"), 3, 2, rng))
    fold(g).kept("behind it GlobalAveragePool 'pool' pools over the axis along which it varies").agree(
        g.feeds(rng, N=2)
    )


@given(SEED, st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"]), BOOL, BOOL, RANK, DTYPES)
def test_reductions(graph, fold, seed, kind, keepdims, behind, rank, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.input("x", ["N", 3, *(2, 5, 3)[:rank]])
    axes = np.array([[-1], [2, -1], [2, -2, 4]][rank - 1])
    if behind:
        y = g.op(kind, conv(g, x, 3, 4, rng, spatial=rank), axes, keepdims=int(keepdims))
        y = g.batch_norm(y, 4, rng, positive=True)
    else:
        y = g.op(kind, g.batch_norm(x, 3, rng, positive=True), axes, keepdims=int(keepdims))
        y = conv(g, y, 3, 4, rng, spatial=rank) if keepdims else g.op("Gemm", y, rng.normal(size=(3, 4)))
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops[kind] == 1


@given(SEED, st.sampled_from(["ReduceSum", "ReduceMean"]), st.sampled_from([(1,), (1, 2)]), DTYPES)
def test_few_shifts_that_differ_are_summed_up(graph, fold, seed, kind, axes, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.op("Add", g.input("x", ["N", 3, 4, 5]), rng.normal(size=(3, 1, 1)))
    g.output(conv(g, g.op(kind, x, np.array(axes)), 1, 2, rng, spatial=2))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {kind: 1, "Conv": 1}


def test_reduction_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 3, "L"]), 3, rng)
    y = g.op("ReduceSum", x, np.array([2]), name="total")
    g.output(conv(g, y, 3, 2, rng, spatial=1))
    fold(g).kept("ReduceSum 'total' sums a number of values that is not known").agree(g.feeds(rng, N=2, L=4))
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 3, 4]), 3, rng)
    y = g.op("ReduceMean", x, np.array([1]), name="mean")
    g.output(conv(g, y, 1, 2, rng, spatial=1))
    fold(g).kept("ReduceMean 'mean' reduces the axis along which it varies").agree(g.feeds(rng, N=2))


@given(SEED, st.sampled_from(["nearest", "linear", "cubic"]), BOOL, RANK, DTYPES)
def test_resize(graph, fold, seed, mode, behind, rank, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x, scales = g.input("x", ["N", 3, *[4] * rank]), np.array([1, 1, 2, 1.5, 0.5][: 2 + rank], dtype=np.float64)
    g.initializers.append(_float32("scales", scales))
    if behind:
        y = g.batch_norm(g.op("Resize", conv(g, x, 3, 3, rng, spatial=rank), None, "scales", mode=mode), 3, rng)
    else:
        y = conv(g, g.op("Resize", g.batch_norm(x, 3, rng), None, "scales", mode=mode), 3, 3, rng, spatial=rank)
    g.output(y)
    result = fold(g).folded()
    assert result.ops == {"Conv": 1, "Resize": 1}
    if mode != "cubic":
        result.agree_exactly(g.feeds(rng, N=2))
    elif dtype == np.float64:  # onnx computes cubic weights in float32
        result.agree(g.feeds(rng, N=2), 1e-6)


@given(SEED, st.sampled_from(["nearest", "linear", "cubic"]), BOOL, BOOL, DTYPES)
def test_resize_to_computed_sizes(graph, fold, seed, mode, behind, listed, dtype):
    """The samples are as many as come, so that torch's exporter computes what an interpolation's sizes are."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype, opset=18)
    x = g.input("x", ["N", 3, 4, "W"])
    front = conv(g, x, 3, 3, rng, spatial=2) if behind else g.batch_norm(x, 3, rng)
    sizes, attributes = [g.op("Shape", front, end=2), np.array([8, 6])], {}
    if listed:
        sizes, attributes = [g.op("Shape", front, start=3), np.array([8])], {"axes": [3, 2]}
    y = g.op("Resize", front, None, None, g.op("Concat", *sizes, axis=0), mode=mode, **attributes)
    g.output(g.batch_norm(y, 3, rng) if behind else conv(g, y, 3, 3, rng, spatial=2))
    result = fold(g).folded()
    assert result.ops == {"Conv": 1, "Shape": 1, "Concat": 1, "Resize": 1}
    if mode != "cubic":
        result.agree_exactly(g.feeds(rng, N=2, W=5))
    elif dtype == np.float64:  # onnx computes cubic weights in float32
        result.agree(g.feeds(rng, N=2, W=5), 1e-6)


def _float32(name, array):
    from onnx import numpy_helper

    return numpy_helper.from_array(array.astype(np.float32), name)


def _uneven_pads(rank, rng):
    return np.concatenate([[0, 0], rng.integers(0, 3, rank), [0, 0], rng.integers(0, 3, rank)])


@given(SEED, st.sampled_from(["reflect", "edge", "wrap"]), BOOL, RANK, DTYPES)
def test_pads_that_repeat_values(graph, fold, seed, mode, behind, rank, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype, opset=19)
    x, pads = g.input("x", ["N", 3, *[4] * rank]), _uneven_pads(rank, rng)
    if behind:
        y = g.batch_norm(g.op("Pad", conv(g, x, 3, 3, rng, spatial=rank), pads, mode=mode), 3, rng)
    else:
        y = conv(g, g.op("Pad", g.batch_norm(x, 3, rng), pads, mode=mode), 3, 3, rng, spatial=rank)
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Pad": 1}


@given(SEED, st.sampled_from([None, 0.0, 0.5]), BOOL, BOOL, RANK, DTYPES)
def test_pads_with_a_constant(graph, fold, seed, value, behind, listed, rank, dtype):
    """All channels send the padded number to one number: s v + t is made equal for all."""
    rng = np.random.default_rng(seed)
    old = value or 0.0
    g = graph(dtype=dtype)
    x, pads = g.input("x", ["N", 3, *[4] * rank]), _uneven_pads(rank, rng)
    operands = [pads] if value is None else [pads, np.float64(value)]
    if listed:  # the axes that are padded, counted from either end
        axes = [2 + axis if axis % 2 else axis - rank for axis in range(rank)]
        operands = [pads.reshape(2, -1)[:, 2:].reshape(-1), *(operands[1:] or [None]), np.array(axes)]
    # numbers that meet exactly need exact arithmetic: powers of two
    scale = 2.0 ** rng.integers(-2, 2, (3, *[1] * rank))
    new = float(rng.integers(-1, 2))
    shift = new - scale * old if behind else old - scale * new
    if behind:
        y = g.op("Pad", conv(g, x, 3, 3, rng, spatial=rank), *operands)
        y = g.op("Add", g.op("Mul", y, scale), shift)
    else:
        y = g.op("Pad", g.op("Add", g.op("Mul", x, scale), shift), *operands)
        y = conv(g, y, 3, 3, rng, spatial=rank)
    g.output(y)
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert result.ops["Conv"] == 1
    assert sum(result.ops.values()) <= 2


def test_pad_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Pad", conv(g, g.input("x", ["N", 3, 4]), 3, 3, rng, spatial=1), np.array([0, 0, 1, 0, 0, 1]), name="pad")
    g.output(g.batch_norm(y, 3, rng))
    fold(g).kept("Pad 'pad' pads with zeros, which a shift would change").agree(g.feeds(rng, N=2))
    g = graph()
    y = g.op("Pad", conv(g, g.input("x", ["N", 3, 4]), 3, 3, rng, spatial=1), np.array([0, 1, 0, 0, 0, 0]), name="pad")
    g.output(g.batch_norm(y, 4, rng))
    fold(g).kept("in front of it Pad 'pad' pads with zeros, which a shift would change").agree(g.feeds(rng, N=2))
    g = graph()
    y = conv(g, g.input("x", ["N", 3, 4]), 3, 3, rng, spatial=1)
    y = g.op("Pad", y, g.input("pads", [6], np.int64), name="pad")
    g.output(g.batch_norm(y, 3, rng))
    fold(g)


@given(SEED, st.sampled_from(["Relu", "LeakyRelu", "PRelu"]), BOOL, RANK, DTYPES)
def test_homogeneous_activations(graph, fold, seed, kind, behind, rank, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    ones = [1] * rank
    x, scale = g.input("x", ["N", 3, *[4] * rank]), positive(rng, (3, *ones))
    extra = [rng.normal(size=(3, *ones))] if kind == "PRelu" else []
    attributes = {"alpha": float(rng.normal())} if kind == "LeakyRelu" else {}
    if behind:
        y = g.op("Mul", g.op(kind, conv(g, x, 3, 3, rng, spatial=rank), *extra, **attributes), scale)
    else:
        y = conv(g, g.op(kind, g.op("Mul", x, scale), *extra, **attributes), 3, 3, rng, spatial=rank)
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, kind: 1}


def test_activation_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 3, 4, 4]), 3, rng)
    g.output(conv(g, g.op("Relu", x, name="relu"), 3, 3, rng, name="conv1"))
    fold(g).kept("channel 0 (3 in all)", "Relu 'relu' needs a scale above 0").agree(g.feeds(rng, N=2))
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 3, 4, 4]), np.array([1.0, -1.5, 2.0]).reshape(3, 1, 1))
    g.output(conv(g, g.op("Relu", x, name="relu"), 3, 3, rng, name="conv1"))
    fold(g).kept("channel 1 (1 in all) is scaled by a negative number", "Relu 'relu' needs a scale above 0").agree(
        g.feeds(rng, N=2)
    )
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 3, 4, 4]), 3, rng)
    g.output(conv(g, g.op("Sigmoid", x, name="gate"), 3, 3, rng, name="conv1"))
    fold(g).kept("Sigmoid 'gate' sees every scale and every shift").agree(g.feeds(rng, N=2))


@given(SEED, BOOL, st.sampled_from(["lower", "upper", "both", "neither"]), DTYPES)
def test_clip(graph, fold, seed, behind, cut, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x, scale, shift = g.input("x", ["N", 3, 4]), np.float64(rng.uniform(0.5, 2)), np.float64(rng.normal())
    low, high = np.float64(-0.5), np.float64(0.75)
    bounds = {"lower": [low], "upper": [None, high], "both": [low, high], "neither": []}[cut]
    if behind:
        y = g.op("Add", g.op("Mul", g.op("Clip", conv(g, x, 3, 3, rng, spatial=1), *bounds), scale), shift)
    else:
        y = conv(g, g.op("Clip", g.op("Add", g.op("Mul", x, scale), shift), *bounds), 3, 3, rng, spatial=1)
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Clip": 1}


def test_clip_refuses_a_map_that_varies(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Clip", conv(g, g.input("x", ["N", 3, 4]), 3, 3, rng, spatial=1), np.float64(0), np.float64(6), name="six")
    g.output(g.op("Mul", y, rng.normal(size=(3, 1))))
    fold(g).kept("Clip 'six' cuts all channels at the same values").agree(g.feeds(rng, N=2))


@given(SEED, st.sampled_from(["Identity", "Dropout"]), BOOL, RANK, DTYPES)
def test_identity_and_dropout(graph, fold, seed, kind, behind, rank, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.input("x", ["N", 3, *[4] * rank])
    if behind:
        y = g.batch_norm(g.op(kind, conv(g, x, 3, 3, rng, spatial=rank)), 3, rng)
    else:
        y = conv(g, g.op(kind, g.batch_norm(x, 3, rng)), 3, 3, rng, spatial=rank)
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops["BatchNormalization"] == 0


def test_dropout_that_drops(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = conv(g, g.input("x", ["N", 3, 4]), 3, 3, rng, spatial=1)
    g.initializers.append(_float32("ratio", np.array(0.5)))
    y = g.op("Dropout", y, "ratio", np.array(True), name="drop")
    g.output(g.batch_norm(y, 3, rng))
    fold(g).kept("Dropout 'drop' drops at random")


@pytest.mark.parametrize(("inner", "outer", "action"), [(10, 1, "kept"), (1, 11, "kept"), (11, 1, "folded")])
def test_casts(graph, fold, inner, outer, action):
    """Backward from ``outer`` into weights of type ``inner`` (10 float16, 1 float32, 11 float64)."""
    from onnx import helper, numpy_helper

    types = {10: np.float16, 1: np.float32, 11: np.float64}
    rng = np.random.default_rng(0)
    g = graph(dtype=types[inner])
    y = g.op("Cast", conv(g, g.input("x", ["N", 3, 4]), 3, 3, rng, spatial=1), to=outer, name="cast")
    factor = numpy_helper.from_array(positive(rng, (3, 1)).astype(types[outer]), "factor")
    g.initializers.append(factor)
    y = g.op("Mul", y, "factor")
    g.outputs.append(helper.make_tensor_value_info(y, outer, None))
    result = fold(g)
    assert result.actions == [action]
    if action == "kept":
        result.kept("the other side of a Cast, where Conv 'conv_0' would take it, holds fewer digits")


@pytest.mark.parametrize("kind", ["Shape", "Size"])
@pytest.mark.parametrize("behind", [True, False])
def test_a_reader_of_the_shape_is_no_reader(graph, fold, behind, kind):
    rng = np.random.default_rng(0)
    g = graph()
    if behind:
        y = conv(g, g.input("x", ["N", 3, "L"]), 3, 4, rng, spatial=1)
        g.output(g.op("Relu", g.batch_norm(y, 4, rng)))
        g.output(g.op(kind, y), np.int64)
    else:
        x = g.batch_norm(g.input("x", ["N", 3, "L"]), 3, rng)
        g.output(conv(g, x, 3, 4, rng, spatial=1))
        g.output(g.op(kind, x), np.int64)
    result = fold(g).folded().agree(g.feeds(rng, N=2, L=5))
    assert result.ops == {"Conv": 1, kind: 1} | ({"Relu": 1} if behind else {})


@given(SEED)
def test_a_value_that_all_its_readers_want_mapped(graph, fold, seed):
    """LayerScale behind pool(x) - x: both operands want the same scale of x, so x's producer takes it."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, 6, 6]), 3, 5, rng)
    y = g.op("Sub", g.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4), x)
    g.output(g.op("Mul", y, rng.normal(size=(5, 1, 1))))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Conv": 1, "AveragePool": 1, "Sub": 1}


def test_nested_shared_values(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, 6, 6]), 3, 5, rng)
    y = g.op("Add", g.op("Identity", x), g.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4))
    y = g.op("Concat", g.op("GlobalAveragePool", y), g.op("GlobalMaxPool", y), axis=2)
    g.output(g.op("Mul", y, positive(rng, (5, 1, 1))))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["Mul"] == 0


def test_a_shared_value_whose_readers_want_different_maps(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, 6, 6]), 3, 4, rng)
    y = g.op("Concat", g.op("LeakyRelu", x), g.op("Identity", g.op("Relu", x)), axis=1)
    g.output(g.op("Mul", y, positive(rng, (8, 1, 1))))
    fold(g).kept("the graph output 'mul_5_out' must stay what it is").agree(g.feeds(rng, N=2))


def test_a_shared_value_with_one_reader_outside(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, 6, 6]), 3, 5, rng)
    y = g.op("Sub", g.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4), x)
    g.output(g.op("Mul", y, rng.normal(size=(5, 1, 1))))
    g.output(g.op("Sigmoid", x))
    fold(g).kept("Sigmoid 'sigmoid_4' sees every scale and every shift").agree(g.feeds(rng, N=2))
