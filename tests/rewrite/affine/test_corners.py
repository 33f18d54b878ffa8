"""Corners of the rules: what only one operand takes, computed weights on either side, results that something reads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.rewrite import rewrite

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([np.float64, np.float32, np.float16])


def conv(g, x, rng, ins=3, outs=3, spatial=1, **options):
    return g.op("Conv", x, rng.normal(size=(outs, ins, *[1] * spatial)), **options)


@given(SEED, st.integers(0, 1), st.booleans(), DTYPES)
def test_the_operand_that_can_takes_the_shift(graph, fold, seed, position, subtract, dtype):
    """A scale passes the LeakyRelu of one operand, the shift does not: the other takes it, negated if subtracted."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.input("x", ["N", 3, 5])
    operands = [conv(g, x, rng), conv(g, x, rng)]
    operands[position] = g.op("LeakyRelu", operands[position])
    y = g.op("Sub" if subtract else "Add", *operands)
    g.output(g.batch_norm(y, 3, rng, positive=True))
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert result.ops["BatchNormalization"] == 0


@given(SEED, st.sampled_from([[1, 1, 3], [1, 2, 1], [2, 1, 1]]), DTYPES)
def test_behind_a_tile(graph, fold, seed, repeats, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("Tile", conv(g, g.input("x", ["N", 3, 5]), rng), np.array(repeats))
    g.output(g.batch_norm(y, 3 * repeats[1], rng))
    result = fold(g).agree_exactly(g.feeds(rng, N=2))
    if repeats[1] == 1:
        assert result.folded().ops == {"Conv": 1, "Tile": 1}
    else:
        result.kept("in front of it Tile 'tile_1' ")


@given(SEED, st.integers(1, 4), DTYPES)
def test_in_front_of_an_expand(graph, fold, seed, width, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.op("Add", g.op("Mul", g.input("x", [3, 1]), rng.normal(size=(3, 1))), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op("Expand", x, np.array([2, 1, width])), rng))
    assert fold(g).folded().agree_exactly(g.feeds(rng)).ops == {"Conv": 1, "Expand": 1}


KINDS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_computed_at_run_time_on_either_side(graph, fold, kind, behind):
    rng = np.random.default_rng(0)
    g = graph()
    features = kind in ("Gemm", "MatMul")
    x = g.input("x", [4, 3] if features else ["N", 3, 4])
    w = g.op("Exp", g.input("w", [3, 3] if features else [3, 3, 1]))
    shape = (3,) if features else (3, 1)

    def mapped(value):
        return g.op("Add", g.op("Mul", value, rng.normal(size=shape)), rng.normal(size=shape))

    g.output(mapped(g.op(kind, x, w, name="linear")) if behind else g.op(kind, mapped(x), w, name="linear"))
    result = fold(g).agree(g.feeds(rng, N=2))
    if kind == "MatMul" and behind:
        result.kept("the graph input 'x' is given")
    elif kind == "MatMul":
        result.kept("MatMul 'linear' sums over the axis along which it varies, with a value")
    else:
        result.kept(f"{kind} 'linear' has a weight that is computed at run time")


@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_a_shift_joins_the_branch_that_reads_it(graph, fold, kind):
    """x + f(x) with x behind a shift, and nothing between f and the sum: the new sum reads the new f."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.input("x", ["N", 3, 5]), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op(kind, x, conv(g, x, rng)), rng))
    fold(g).folded().agree(g.feeds(rng, N=2))


def test_statistics_that_are_read_stay_what_they_are(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32)
    y, mean = g.op("LayerNormalization", g.input("x", ["N", 3, 4]), rng.normal(size=4), axis=-1, outputs=2)
    g.output(g.op("Mul", g.op("Transpose", y, perm=[0, 2, 1]), rng.normal(size=(4, 1))))
    g.output(mean)
    result = fold(g).agree(g.feeds(rng, N=2), 2e-5)
    assert result.ops == {"LayerNormalization": 1, "Transpose": 1}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_one_scale_in_front_of_a_group_norm(graph, fold, groups):
    """A shift of each channel is no constant of its group, unless it is alone; one number is."""
    rng = np.random.default_rng(0)
    for shape in ((), (4, 1)):
        g = graph(dtype=np.float32, opset=21)
        x = g.op("Add", g.op("Mul", g.input("x", ["N", 4, 6]), np.array(2.0)), rng.normal(size=shape))
        y = g.op("GroupNormalization", x, rng.normal(size=4), rng.normal(size=4), num_groups=groups, name="norm")
        g.output(y, None, ["N", 4, 6])
        result = fold(g).agree(g.feeds(rng, N=2), 2e-5)
        rows = [row for row in result.ledger if row.kind == "affine map"]
        assert all(row.action == "folded" for row in rows) == (shape == () or groups == 4)
        if shape and groups < 4:
            assert "averages over the axis along which it varies" in result.reasons


@given(SEED, st.sampled_from([np.int8, np.uint8]), st.integers(0, 1))
def test_zero_points_in_blocks(graph, fold, seed, dtype, axis):
    """q' = 2 z - q in every block."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=21)
    middle = 0 if dtype == np.int8 else 128
    shape = (2, 6) if axis == 0 else (4, 3)
    integers = rng.integers(middle - 90, middle + 90, (4, 6)).astype(dtype)
    zeros = rng.integers(middle - 10, middle + 10, shape).astype(dtype)
    operands = [g.constant(integers, "w"), rng.uniform(0.01, 0.1, shape), g.constant(zeros, "z")]
    w = g.op("DequantizeLinear", *operands, axis=axis, block_size=2)
    factor = rng.choice([-1, 1], 6) * rng.uniform(0.5, 2, 6) if axis == 0 else np.array(-1.5)
    g.output(g.op("Mul", g.op("MatMul", g.input("x", ["N", 3, 4]), w), factor))
    assert fold(g).folded().agree(g.feeds(rng, N=2), 2e-5).ops == {"DequantizeLinear": 1, "MatMul": 1}


def test_what_a_quantized_bias_refuses_keeps_the_convolution(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    weight = g.op("DequantizeLinear", g.constant(np.ones((3, 3, 1), np.int8), "w"), np.array(0.1))
    stored = np.array([1, -(2**31), 5], np.int32)
    bias = g.op("DequantizeLinear", g.constant(stored, "b"), np.array(1e-6), name="bias")
    y = g.op("Conv", g.input("x", ["N", 3, 4]), weight, bias)
    g.output(g.op("Mul", y, -np.ones((3, 1))))
    fold(g).kept("the number -2147483648 of DequantizeLinear 'bias' has no opposite in int32").agree(
        g.feeds(rng, N=2), 2e-5
    )


@pytest.mark.parametrize("behind", [True, False])
def test_pads_whose_axes_are_computed(graph, fold, behind):
    rng = np.random.default_rng(0)
    g = graph()
    x, axes = g.input("x", ["N", 3, 4]), g.input("axes", [1], np.int64)
    operands = [np.array([1, 1]), None, axes]
    if behind:
        y = g.known(g.op("Pad", conv(g, x, rng), *operands, name="pad"), "N", 3, "L")
        y = g.op("Relu", g.op("Mul", y, rng.normal(size=(3, 1))))
    else:
        y = g.known(g.op("Pad", g.op("Mul", x, rng.normal(size=(3, 1))), *operands, name="pad"), "N", 3, "L")
        y = conv(g, y, rng)
    g.output(g.op("Reshape", y, np.array([-1])))
    fold(g).kept("Pad 'pad' pads by widths that are known at run time only")


@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_in_front_of_a_pad_every_channel_needs_one_number(graph, fold, shape):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.op("Mul", g.input("x", ["N", 3, 4]), rng.normal(size=shape)), rng.normal(size=shape))
    g.output(conv(g, g.op("Pad", x, np.array([0, 0, 1, 0, 0, 2]), np.float64(1.5), name="pad"), rng))
    result = fold(g).agree(g.feeds(rng, N=2))
    if shape:
        result.kept("Pad 'pad' pads all channels with one number")
    else:
        result.folded()


@pytest.mark.parametrize("kind", ["Clip", "Pad", "MaxPool", "ReduceSum"])
@pytest.mark.parametrize("behind", [True, False])
def test_what_stands_beyond_refuses(graph, fold, kind, behind):
    """The operator in between would pass the map; the Sigmoid beyond it does not take it."""
    rng = np.random.default_rng(0)
    operands = {"Clip": [np.float64(-1)], "Pad": [np.array([0, 0, 1, 0, 0, 1])], "ReduceSum": [np.array([2])]}
    options = {"MaxPool": {"kernel_shape": [2]}}.get(kind, {})
    g = graph()
    x = g.input("x", ["N", 3, 4])

    def between(value):
        return g.op(kind, value, *operands.get(kind, []), **options)

    if behind:
        g.output(g.op("Mul", between(g.op("Sigmoid", x, name="gate")), np.float64(2)))
    else:
        g.output(g.op("Sigmoid", between(g.op("Mul", x, np.float64(2))), name="gate"))
    words = "has no weights that could change what it writes" if behind else "sees every scale and every shift"
    fold(g).kept(f"Sigmoid 'gate' {words}").agree(g.feeds(rng, N=2))


@given(SEED, st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax"]), st.booleans(), DTYPES)
def test_a_reduction_over_nothing_or_everything(graph, fold, seed, kind, noop, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.op("Mul", g.input("x", ["N", 3, 4]), np.float64(rng.uniform(0.5, 2)))
    y = g.op(kind, x, np.array([], np.int64), noop_with_empty_axes=int(noop))
    g.output(conv(g, y, rng, ins=3 if noop else 1))
    fold(g).folded().agree_exactly(g.feeds(rng, N=2))


@pytest.mark.parametrize("kind", ["Gather", "Slice", "Split"])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("along", [True, False])
def test_selections_along_a_dynamic_axis(graph, fold, kind, behind, along):
    """Selected is the length, which is dynamic; a map of the channels passes, one of the length is not known there."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, "L"])

    def select(value):
        if kind == "Gather":
            return g.op(kind, value, np.array([1, 0]), axis=2)
        if kind == "Slice":
            return g.op(kind, value, np.array([1]), np.array([3]), np.array([2]))
        return g.op(kind, value, axis=2, num_outputs=2, outputs=2)[0]

    shape = (2,) if along and behind else (3, 1)
    scale = rng.normal(size=shape)
    g.output(g.op("Mul", select(conv(g, x, rng)), scale) if behind else conv(g, select(g.op("Mul", x, scale)), rng))
    if along and behind and kind != "Gather":
        return  # the size behind a selection of a dynamic axis is dynamic: no constant is known to fit it
    result = fold(g).agree(g.feeds(rng, N=2, L=4))
    if along and behind:
        result.kept("Conv 'conv_0' has no weights along an axis where it varies")
    else:
        result.folded()


def test_a_split_of_which_one_part_is_not_read(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 6, 4]), 6, rng)
    left, _ = g.op("Split", x, np.array([3, 3]), axis=1, outputs=2)
    g.output(conv(g, left, rng))
    fold(g).folded().agree(g.feeds(rng, N=2))


@pytest.mark.parametrize("left", [True, False])
def test_a_sum_behind_a_product_that_is_no_bias(graph, fold, left):
    """The shift in front of x W needs an Add of its own where what follows is y + y, or adds a computed value."""
    rng = np.random.default_rng(0)
    for twice in (True, False):
        g = graph()
        x = g.op("Add", g.input("x", ["N", 5, 4]), rng.normal(size=4))
        y = g.op("MatMul", x, rng.normal(size=(4, 3)))
        other = y if twice else g.input("z", ["N", 5, 3])
        g.output(g.op("Add", *((y, other) if left else (other, y))))
        result = fold(g).folded().agree(g.feeds(rng, N=2))
        assert result.ops == {"MatMul": 1, "Add": 2}


def test_a_gemm_whose_quantized_weight_refuses(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    w = g.op("DequantizeLinear", g.constant(np.full((4, 3), -128, np.int8), "w"), np.array(0.1), name="weight")
    g.output(g.op("Mul", g.op("Gemm", g.input("x", ["N", 4]), w), -np.ones(3)))
    fold(g).kept("the number -128 of DequantizeLinear 'weight' has no opposite in int8").agree(g.feeds(rng, N=2), 2e-5)


def test_a_view_that_made_up_sizes_do_not_fit(graph, fold):
    """3 N L must be a multiple of 77 for this view: the check of one operator alone finds sizes that are."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Reshape", conv(g, g.input("x", ["N", 3, "L"]), rng), np.array([-1, 7, 11]))
    g.output(g.op("Mul", y, np.float64(1.5)))
    fold(g).folded().agree(g.feeds(rng, N=7, L=11))


def test_without_the_check_the_same_comes_out(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.output(g.batch_norm(conv(g, g.input("x", ["N", 3, 4]), rng), 3, rng))
    unchecked = rewrite(ir.from_proto(g.proto()), check=False)
    assert ir.to_proto(unchecked.model) == fold(g).after
