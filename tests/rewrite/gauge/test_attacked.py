"""Graphs on which the engine before this one crashed, was wrong, or left what exact algebra removes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from normdeploy.graph.shape_inference import NotInferredError
from normdeploy.rewrite import rewrite

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)


def conv(g, x, rng, ins=3, outs=3, spatial=1, **options):
    return g.op("Conv", x, rng.normal(size=(outs, ins, *[1] * spatial)), rng.normal(size=outs), **options)


def mapped(g, x, rng, *shape, positive=False):
    scale = rng.uniform(0.5, 2, shape) * (1 if positive else rng.choice([-1.0, 1.0], shape))
    return g.op("Add", g.op("Mul", x, scale), rng.normal(size=shape))


@given(SEED, st.booleans())
def test_indices_that_repeat(graph, fold, seed, behind):
    """In front every copy is scaled alike; behind, copies of one channel are scaled differently, and the map stays."""
    rng = np.random.default_rng(seed)
    g, indices = graph(), np.array([2, 0, 0, 1, -1])
    x = g.input("x", ["N", 3, 4])
    if behind:
        g.output(mapped(g, g.op("Gather", conv(g, x, rng), indices, axis=1), rng, 5, 1))
        fold(g).agree(g.feeds(rng, N=2)).kept("has one scale for several places where it varies")
        return
    g.output(conv(g, g.op("Gather", mapped(g, x, rng, 3, 1), indices, axis=1), rng, ins=5))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Gather": 1, "Conv": 1}


@given(SEED)
def test_a_part_that_nothing_reads_asks_for_nothing(graph, fold, seed):
    """Its channels need not be scaled alike: the map in front goes into what reads the other part."""
    rng = np.random.default_rng(seed)
    g = graph()
    parts = g.op("SplitToSequence", mapped(g, g.input("x", ["N", 5, 4]), rng, 5, 1), np.array([2, 3]), axis=1)
    g.output(conv(g, g.op("SequenceAt", parts, np.array(1)), rng))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Split": 1, "Conv": 1}


@given(SEED)
def test_copies_that_are_scaled_alike(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g, indices, scale = graph(), np.array([2, 0, 0]), rng.normal(size=3)
    y = g.op("Gather", conv(g, g.input("x", ["N", 3, 4]), rng), indices, axis=1)
    g.output(g.op("Mul", y, scale[indices].reshape(3, 1)))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Gather": 1, "Conv": 1}


def test_what_is_joined_has_no_sizes(graph, fold, monkeypatch):
    """Where onnx infers nothing, an operator may have a gauge and no shape; the map in front of it stays."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, 4])
    g.output(conv(g, g.op("Concat", x, g.op("Relu", mapped(g, x, rng, 3, 1)), axis=1), rng, ins=6))

    def fails(*_, **__):
        raise NotInferredError("nothing", "something")

    proto = g.proto()
    monkeypatch.setattr("normdeploy.rewrite.infer.infer_shapes", fails)
    assert [row.action for row in rewrite(ir.from_proto(proto)).ledger] == ["kept"]


@pytest.mark.parametrize("kind", ["Conv", "MatMul", "ReduceMean", "Relu"])
@pytest.mark.parametrize("last", ["Identity", "Mul"])
def test_what_is_scaled_by_0_in_every_channel_is_0(graph, fold, kind, last):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Mul", g.input("x", ["N", 3, 3]), np.zeros((3, 1)))
    operands = {
        "Conv": [rng.normal(size=(3, 3, 1))],
        "MatMul": [rng.normal(size=(3, 3))],
        "ReduceMean": [np.array([2])],
    }
    y = g.op(kind, y, *operands.get(kind, []))
    y = g.op("Conv", y, rng.normal(size=(3, 3, 1)))
    g.output(g.op(last, y, *([rng.normal(size=(3, 1))] if last == "Mul" else [])))
    fold(g).agree(g.feeds(rng, N=2)).folded(1 + (last == "Mul"))


def test_a_map_that_stays_behind_which_all_is_scaled_by_0_leaves_nothing(graph, fold):
    """Its shift over what stands for infinity is 0 in float64, too."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Sub", rng.normal(size=(3, 1)), g.op("Relu", g.input("x", ["N", 3, 4])))
    y = g.op("Mul", g.op("PRelu", y, rng.normal(size=(3, 1))), np.zeros((3, 1)))
    g.output(g.op("Mul", y, g.op("Sigmoid", y)))
    assert not any(array.any() for array in fold(g).run(g.feeds(rng, N=2)))


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("axis", [1, 2])
def test_a_resize_to_the_size_that_was(graph, fold, behind, axis):
    """4 values at 1.2 times the density are 4 others: a map of the positions stays, one of the channels goes."""
    rng = np.random.default_rng(0)
    g = graph()
    g.initializers.append(numpy_helper.from_array(np.array([1, 1, 1.2], np.float32), "scales"))
    x, shape = g.input("x", ["N", 3, 4]), (3, 1) if axis == 1 else (4,)

    def resize(value):
        return g.op("Resize", value, None, "scales", mode="linear", name="resize")

    g.output(
        mapped(g, resize(conv(g, x, rng)), rng, *shape) if behind else conv(g, resize(mapped(g, x, rng, *shape)), rng)
    )
    result = fold(g).agree(g.feeds(rng, N=2), 1e-6)
    if axis == 1:
        result.folded()
    else:
        result.kept(
            "Resize 'resize' resizes the axis" if not behind else "has no weights along an axis where it varies"
        )


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("factor", [1.5, -0.5])
def test_a_scalar_map_beside_steps_of_rank_0(graph, fold, kind, behind, factor):
    """One step and one zero point for the whole tensor, as quantizers write them."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    features = kind in ("Gemm", "MatMul")
    stored = g.constant(rng.integers(-100, 100, (3, 3) if features else (3, 3, 1)).astype(np.int8), "w")
    weight = g.op("DequantizeLinear", stored, np.array(0.05), g.constant(np.array(3, np.int8), "zero"))
    x = g.input("x", ["N", 3] if features else ["N", 3, 4])
    y = g.op(kind, x if behind else g.op("Mul", x, np.array(factor)), weight)
    g.output(g.op("Mul", y, np.array(factor)) if behind else y)
    assert fold(g).folded().agree(g.feeds(rng, N=2), 2e-5).ops == {"DequantizeLinear": 1, kind: 1}


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("what", ["bounds", "other axes"])
def test_slices_that_leave_the_channels_alone(graph, fold, behind, what):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, 6])
    if what == "bounds":
        operands = [g.input("start", [1], np.int64), np.array([5]), np.array([2])]
    else:
        operands = [np.array([0, 1]), np.array([3, 5]), np.array([1, 2])]

    def cut(value):
        return g.known(g.op("Slice", value, *operands), "N", 3, "L")

    g.output(mapped(g, cut(conv(g, x, rng)), rng, 3, 1) if behind else conv(g, cut(mapped(g, x, rng, 3, 1)), rng))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Slice": 1, "Conv": 1}


@given(SEED, st.booleans(), st.booleans())
def test_a_pad_that_cuts(graph, fold, seed, behind, channels):
    """Negative widths take away: nothing is written that a shift would change."""
    rng = np.random.default_rng(seed)
    g = graph()
    widths = np.array([0, -1, 0, 0, 0, -1]) if channels else np.array([0, 0, -1, 0, 0, -2])
    x, left = g.input("x", ["N", 3, 6]), 2 if channels else 3

    def cut(value):
        return g.op("Pad", value, widths)

    y = (
        mapped(g, cut(conv(g, x, rng)), rng, left, 1)
        if behind
        else conv(g, cut(mapped(g, x, rng, 3, 1)), rng, ins=left)
    )
    g.output(y)
    result = fold(g).agree(g.feeds(rng, N=2))
    assert result.ops["Mul"] == 0, result.reasons


@given(SEED, st.sampled_from(["Max", "Min"]), st.booleans(), st.booleans())
def test_maxout(graph, fold, seed, kind, behind, vector):
    """s max(a, b) + t = max(s a + t, s b + t) for s > 0, with b computed or a vector."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.input("x", ["N", 3, 4])
    if behind:
        other = rng.normal(size=(3, 1)) if vector else conv(g, x, rng)
        g.output(mapped(g, g.op(kind, conv(g, x, rng), other), rng, 3, 1, positive=True))
    else:
        y = mapped(g, x, rng, 3, 1, positive=True)
        other = rng.normal(size=(3, 1)) if vector else g.op("Identity", y)
        g.output(conv(g, g.op(kind, y, other), rng))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops[kind] == 1
    assert result.ops["Mul"] == result.ops["Add"] == 0


def test_maxout_by_a_negative_scale_stays(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Max", conv(g, g.input("x", ["N", 3, 4]), rng), rng.normal(size=(3, 1)), name="most")
    g.output(g.op("Mul", y, np.array([1.0, -1, 2]).reshape(3, 1)))
    fold(g).agree(g.feeds(rng, N=2)).kept("channel 1 (1 in all)", "Max 'most' compares, and needs a scale above 0")


@given(SEED, st.booleans(), st.booleans(), st.sampled_from([0.25, 0.0]))
def test_where_beside_a_constant(graph, fold, seed, behind, first, number):
    rng = np.random.default_rng(seed)
    g = graph()
    x, mask = g.input("x", ["N", 3, 4]), rng.integers(0, 2, (3, 4)).astype(bool)

    def choose(value):
        return g.op("Where", mask, *((value, np.float64(number)) if first else (np.float64(number), value)))

    y = mapped(g, choose(conv(g, x, rng)), rng, 3, 1) if behind else conv(g, choose(mapped(g, x, rng, 3, 1)), rng)
    g.output(y)
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Where": 1, "Conv": 1}


@given(SEED, st.booleans(), st.booleans())
def test_a_mean_of_windows_of_two_sizes(graph, fold, seed, divides, first):
    """As an adaptive pool to a size that does not divide: the shorter windows are filled up with zeros, and counted."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = mapped(g, g.op("Sigmoid", g.input("x", ["N", 3, 2, 5])), rng, 3, 1, 1)
    windows = g.op("Gather", x, np.array([[0, 1, 2], [3, 4, 4]]), axis=3)
    beyond, nought = np.zeros((2, 2, 3), bool), np.float64(0)
    beyond[0, 1, 2] = beyond[1, 0, 0] = True
    filled = g.op("Where", *((beyond, nought, windows) if first else (~beyond, windows, nought)))
    parts = [g.op("Gather", filled, np.array(at), axis=4) for at in range(3)]
    total = g.op("Add", g.op("Add", *parts[:2]), parts[2])
    count = np.array([[3.0, 2], [2, 3]])  # along two axes: no map
    y = g.op("Div", total, count) if divides else g.op("Mul", 1 / count, total)
    g.output(g.op("Conv", y, rng.normal(size=(4, 3, 1, 1)), rng.normal(size=4)))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops == {"Sigmoid": 1, "Gather": 4, "Where": 1, "Add": 2, "Div" if divides else "Mul": 1, "Conv": 1}


@given(SEED, st.booleans(), st.sampled_from(["lower", "upper", "both", "zero"]))
def test_a_clip_by_a_negative_number(graph, fold, seed, behind, cut):
    """The bounds change places."""
    rng = np.random.default_rng(seed)
    g = graph()
    x, scale, shift = g.input("x", ["N", 3, 4]), np.float64(-rng.uniform(0.5, 2)), np.float64(rng.normal())
    low, high = np.float64(-0.5), np.float64(0.75)
    bounds = {"lower": [low], "upper": [None, high], "both": [low, high], "zero": [np.float64(0)]}[cut]
    if behind:
        y = g.op("Add", g.op("Mul", g.op("Clip", conv(g, x, rng), *bounds), scale), shift)
    else:
        y = conv(g, g.op("Clip", g.op("Add", g.op("Mul", x, scale), shift), *bounds), rng)
    g.output(y)
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Clip": 1, "Conv": 1}


@given(SEED, st.booleans())
def test_a_clip_at_zero_alone_is_a_relu(graph, fold, seed, positive):
    """Each channel may have a scale of its own above 0, as ``torch.clamp(min=0)`` behind a norm has."""
    rng = np.random.default_rng(seed)
    g, scale = graph(), rng.uniform(0.5, 2, (3, 1)) * (1 if positive else np.array([[1], [-1], [1]]))
    y = g.op("Clip", conv(g, g.input("x", ["N", 3, 4]), rng), np.float64(0), name="cut")
    g.output(g.op("Sigmoid", g.op("Mul", y, scale)))
    result = fold(g).agree(g.feeds(rng, N=2))
    if positive:
        assert result.folded().ops == {"Conv": 1, "Clip": 1, "Sigmoid": 1}
    else:
        result.kept("Clip 'cut' ")


@pytest.mark.parametrize("scale", [2.0, -2.0])
def test_a_clip_whose_upper_bound_is_below_its_lower_one(graph, fold, scale):
    """It gives the upper one everywhere; exchanged by a negative number they would give the other."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Clip", conv(g, g.input("x", ["N", 3, 4]), rng), np.float64(0.75), np.float64(-0.5))
    g.output(g.op("Tanh", g.op("Mul", y, np.float64(scale))))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert result.actions == ["folded" if scale > 0 else "kept"]


@given(SEED, st.booleans())
def test_a_position_embedding_behind_a_biased_product(graph, fold, seed, norm):
    """(x W + b) + P, and a map of the features behind it."""
    rng = np.random.default_rng(seed)
    g = graph()
    y = g.op("Add", g.op("MatMul", g.input("x", ["N", 5, 3]), rng.normal(size=(3, 4))), rng.normal(size=4))
    y = g.op("Add", y, rng.normal(size=(1, 5, 4)))
    g.output(g.op("Sigmoid", mapped(g, y, rng, 4)) if norm else mapped(g, y, rng, 4))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["MatMul"] == 1
    assert result.ops["Mul"] == 0
    assert result.ops["Add"] <= 2


@given(SEED, st.booleans())
def test_a_roll_over_channels(graph, fold, seed, behind):
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.input("x", ["N", 5, 4])

    def roll(value):
        tail = g.op("Slice", value, np.array([3]), np.array([5]), np.array([1]))
        return g.op("Concat", tail, g.op("Slice", value, np.array([0]), np.array([3]), np.array([1])), axis=1)

    y = conv(g, x, rng, 5, 5)
    g.output(mapped(g, roll(y), rng, 5, 1) if behind else conv(g, roll(mapped(g, x, rng, 5, 1)), rng, 5, 5))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Slice": 2, "Concat": 1, "Conv": 1}


@given(SEED, st.sampled_from(["Add", "Sum"]), st.booleans())
def test_a_value_added_to_itself(graph, fold, seed, kind, behind):
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.input("x", ["N", 3, 4])
    y = conv(g, x, rng) if behind else mapped(g, x, rng, 3, 1)
    y = g.op(kind, y, y)
    g.output(mapped(g, y, rng, 3, 1) if behind else conv(g, y, rng))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {kind: 1, "Conv": 1}


@given(SEED, st.booleans())
def test_a_slice_that_takes_everything(graph, fold, seed, behind):
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.input("x", ["N", 3, 4])

    def all_of(value):
        return g.op("Slice", value, np.array([0]), np.array([2**62]), np.array([1]))

    g.output(mapped(g, all_of(conv(g, x, rng)), rng, 3, 1) if behind else conv(g, all_of(mapped(g, x, rng, 3, 1)), rng))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["Conv"] == 1
    assert result.ops["Mul"] == result.ops["Add"] == 0


@given(SEED, st.integers(2, 3))
def test_a_mean_of_branches(graph, fold, seed, count):
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.input("x", ["N", 3, 4])
    g.output(mapped(g, g.op("Mean", *(conv(g, x, rng) for _ in range(count))), rng, 3, 1))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["Mul"] == 0


@given(SEED, st.booleans())
def test_absolute_values(graph, fold, seed, behind):
    rng = np.random.default_rng(seed)
    g = graph()
    x, scale = g.input("x", ["N", 3, 4]), rng.uniform(0.5, 2, (3, 1))
    y = g.op("Mul", g.op("Abs", conv(g, x, rng)), scale) if behind else conv(g, g.op("Abs", g.op("Mul", x, scale)), rng)
    g.output(y)
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Abs": 1, "Conv": 1}


FORMATS = {
    np.float16: (2.0**-11, [1 / 255, 1e-3, 1e-4]),
    np.float32: (2.0**-24, [1 / 255, 1e-4, 1e-30, 1e-36, 1e-38]),
}


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize(("dtype", "scale"), [(dtype, scale) for dtype in FORMATS for scale in FORMATS[dtype][1]])
def test_a_small_scale_costs_no_digits(graph, fold, dtype, scale, behind, kind):
    """Stored weights are within a few units of rounding of the exact ones, row by row, or the map stays."""
    rng = np.random.default_rng(0)
    unit, g = FORMATS[dtype][0], graph(dtype=dtype)
    features = kind in ("Gemm", "MatMul")
    weight = (0.05 * rng.normal(size=(8, 8) if features else (8, 8, 1))).astype(dtype)
    x = g.input("x", ["N", 8] if features else ["N", 8, 4])
    factor = dtype(scale)
    y = g.op(kind, x if behind else g.op("Mul", x, factor), g.constant(weight, "w"))
    g.output(g.op("Mul", y, factor) if behind else y)
    result = fold(g)
    if result.actions == ["kept"]:
        assert "would lose digits" in result.reasons
        assert float(np.abs(weight.astype(np.float64) * float(factor)).min()) < float(np.finfo(dtype).tiny) / unit
        return
    assert result.actions == ["folded"]
    exact = weight.astype(np.float64) * float(factor)
    stored = result.weight("w").astype(np.float64)
    axis = 0 if kind in ("ConvTranspose", "Gemm", "MatMul") else 1
    lost = np.sqrt(np.square(stored - exact).mean(axis=axis)) / np.sqrt(np.square(exact).mean(axis=axis))
    assert lost.max() <= 2.5 * unit


@pytest.mark.parametrize("scale", [1e-3, 1e-4])
def test_a_fold_that_would_cost_digits_in_float16_stays(graph, fold, scale):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float16)
    y = g.op("Conv", g.input("x", ["N", 8, 4]), 0.02 * rng.normal(size=(8, 8, 1)), name="conv")
    g.output(g.op("Mul", y, np.float16(scale)))
    fold(g).kept("the weights of Conv 'conv' would lose digits", "float16").agree(g.feeds(rng, N=2), 1e-2)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_digits_that_a_bias_hides_are_no_loss(graph, fold, dtype, kind):
    """A channel scaled by next to nothing is its shift, whatever is read; in float16 large inputs show it."""
    rng = np.random.default_rng(0)
    g, features, scale, shift = graph(dtype=dtype), kind in ("Gemm", "MatMul"), rng.uniform(0.5, 2, 8), np.ones(8)
    scale[[2, 5]] = 1e-41 if dtype is np.float32 else 1e-5
    shape = (8,) if features else (8, 1)
    weight = 0.05 * rng.normal(size=(8, 8) if features else (8, 8, 1))
    y = g.op(kind, g.input("x", ["N", 8] if features else ["N", 8, 4]), g.constant(weight.astype(dtype), "w"), name="f")
    y = g.op("Mul", y, scale.astype(dtype).reshape(shape))
    g.output(g.op("Relu", g.op("Add", y, shift.astype(dtype).reshape(shape))))
    result = fold(g)
    if dtype is np.float16:
        result.kept("would lose digits")
        return
    assert result.actions == ["folded"]
    exact = weight.astype(np.float32).astype(np.float64) * scale.astype(np.float32).astype(np.float64).reshape(
        (-1, 1, 1) if kind == "Conv" else (1, 8, 1)[: weight.ndim]
    )
    lost = np.abs(result.weight("w") - exact).sum(axis=1 if kind == "Conv" else 0)
    assert (lost <= 2.0**-24 * np.abs(exact).sum(axis=1 if kind == "Conv" else 0) + 8 * 2.0**-150).all()


@pytest.mark.parametrize("rows", [True, False])
def test_a_bias_that_is_small_somewhere_hides_nothing(graph, fold, rows):
    """A shift of its own in each row, of which one is 0; and an Add that brings none to the channel."""
    rng = np.random.default_rng(0)
    g, scale, shift = graph(dtype=np.float32), np.ones(8, np.float32), np.ones((5, 8), np.float32)
    scale[3] = 1e-41
    shift[4 if rows else slice(None), 3] = 0
    y = g.op("MatMul", g.input("x", ["N", 5, 8]), (0.05 * rng.normal(size=(8, 8))).astype(np.float32), name="f")
    g.output(g.op("Relu", g.op("Add", g.op("Mul", y, scale), shift)))
    fold(g).kept("would lose digits")


def test_a_row_is_asked_for_more_than_its_first_number(graph, fold):
    """Of each row the first product is 0, and the others are numbers of which float32 keeps a few bits."""
    rng = np.random.default_rng(0)
    g, scale = graph(dtype=np.float32), np.full((8, 1), 1e-21, np.float32)
    scale[0] = 0
    x = g.op("Mul", g.input("x", ["N", 8, 4]), scale)
    weight = (1e-20 * rng.uniform(1, 2, (8, 8, 1))).astype(np.float32)
    weight[:, 0] = 1
    g.output(g.op("Conv", x, weight, name="conv"))
    fold(g).kept("the weights of Conv 'conv' would lose digits")


@pytest.mark.parametrize(
    ("kind", "factor"), [("FLOAT", 1e30), ("FLOAT", 1e-44), ("BFLOAT16", 1e30), ("BFLOAT16", 1e-39)]
)
def test_weights_that_a_type_does_not_hold(kind, factor):
    """Overflow and underflow of float32 and bfloat16, which have the same range of exponents."""
    dtype = getattr(onnx.TensorProto, kind)
    rng = np.random.default_rng(0)
    weight = rng.uniform(0.5, 1, (3, 3, 1)) * (1e20 if factor > 1 else 0.1)
    values = {"w": weight, "s": np.full((3, 1), factor)}
    initializers = [helper.make_tensor(name, dtype, array.shape, array.reshape(-1)) for name, array in values.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "s"], ["y"], name="m"),
    ]
    infos = [helper.make_tensor_value_info(name, dtype, ["N", 3, 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    (row,) = rewrite(ir.from_proto(model)).ledger
    assert row.action == "kept"
    assert ("would overflow" if factor > 1 else "would lose digits") in row.reason


def test_a_weight_whose_readers_all_take_the_same_map_is_not_kept_twice(graph, fold):
    """Two convolutions share a weight, and each has the same BatchNormalization: the old weight is gone."""
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(rng.normal(size=(8, 8, 1)), "shared")
    operands = [g.constant(rng.uniform(0.5, 2, 8), f"p{at}") for at in range(4)]
    for at in range(2):
        y = g.op("Conv", g.input(f"x{at}", ["N", 8, 16]), "shared")
        g.output(g.op("Sigmoid", g.op("BatchNormalization", y, *operands)))
    result = fold(g).folded(2).agree(g.feeds(rng, N=2))
    assert sum(tuple(item.dims) == (8, 8, 1) for item in result.after.graph.initializer) == 1


def test_a_large_weight_is_changed_where_nobody_keeps_it(graph, fold):
    """A copy would cost more than the passes do, and none is made; a third reader without the map would need one."""
    rng = np.random.default_rng(0)
    for third in (False, True):
        g = graph()
        g.constant(rng.normal(size=(40, 3)), "shared")
        factor = g.constant(rng.uniform(0.5, 2, 3), "factor")
        for at in range(3 if third else 2):
            y = g.op("MatMul", g.input(f"x{at}", [2, 40]), "shared")
            g.output(g.op("Sigmoid", g.op("Mul", y, factor) if at < 2 else y))
        result = fold(g).agree(g.feeds(rng))
        assert result.actions == (["kept"] * 2 if third else ["folded"] * 2)


def test_a_head_used_at_five_places_is_folded_once(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(rng.normal(size=(8, 8, 3, 3)), "head")
    operands = [g.constant(rng.uniform(0.5, 2, 8), f"p{at}") for at in range(4)]
    for at in range(5):
        y = g.op("Conv", g.input(f"x{at}", ["N", 8, 16, 16]), "head", pads=[1] * 4)
        g.output(g.op("Relu", g.op("BatchNormalization", y, *operands)))
    result = fold(g).folded(5).agree(g.feeds(rng, N=1))
    assert result.ops == {"Conv": 5, "Relu": 5}
    assert sum(tuple(item.dims) == (8, 8, 3, 3) for item in result.after.graph.initializer) == 1


@pytest.mark.parametrize("zeros", ["all", "some", "shift too"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_branches_that_begin_at_zero(graph, fold, zeros, dtype):
    """The last BatchNormalization of a residual branch with gamma = 0, as training initializes it."""
    rng = np.random.default_rng(0)
    g = graph(dtype=dtype)
    x = conv(g, g.input("x", ["N", 4, 6, 6]), rng, 4, 4, 2)
    for _ in range(3):
        y = g.op("Relu", g.batch_norm(conv(g, x, rng, 4, 4, 2), 4, rng))
        gamma = np.array([0.0, 1, -2, 0]) if zeros == "some" else np.zeros(4)
        beta = np.zeros(4) if zeros == "shift too" else rng.normal(size=4)
        operands = [gamma, beta, rng.normal(size=4), rng.uniform(0.5, 2, 4)]
        y = g.op("BatchNormalization", conv(g, y, rng, 4, 4, 2), *operands)
        x = g.op("Relu", g.op("Add", x, y))
    g.output(conv(g, x, rng, 4, 2, 2))
    result = fold(g).folded(6).agree(g.feeds(rng, N=2), 1e-9 if dtype == np.float64 else 1e-4)
    assert result.ops["BatchNormalization"] == 0


@given(SEED, st.booleans(), st.booleans())
def test_a_scale_of_zero_in_front(graph, fold, seed, relu, last):
    """0 x + t is t, whatever reads it: kept or folded, the constant arrives."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = conv(g, g.input("x", ["N", 4, 6]), rng, 4, 4) if last else g.input("x", ["N", 4, 6])
    scale = np.array([0.0, 1.5, 0.5, 0.0]).reshape(4, 1)
    y = g.op("Add", g.op("Mul", x, scale), rng.normal(size=(4, 1)))
    y = g.op("Relu", y) if relu else y
    g.output(conv(g, y, rng, 4, 2))
    fold(g).agree(g.feeds(rng, N=2))


def preactivation(graph, rng, signs, blocks=3, channels=4):
    """BatchNormalization, Relu, Conv, added to the stream; one sign per block's first channel."""
    g = graph()
    x = conv(g, g.input("x", ["N", channels, 6, 6]), rng, channels, channels, 2, name="stem")
    for at in range(blocks):
        gamma = rng.uniform(0.8, 1.2, channels) * np.array([signs[at], *[1] * (channels - 1)])
        operands = [
            gamma,
            rng.uniform(-0.3, 0.3, channels),
            rng.uniform(-0.3, 0.3, channels),
            rng.uniform(0.8, 1.2, channels),
        ]
        y = g.op("Relu", g.op("BatchNormalization", x, *operands, name=f"norm{at}"), name=f"relu{at}")
        y = g.op("Conv", y, 0.3 * rng.normal(size=(channels, channels, 3, 3)), pads=[1] * 4, name=f"conv{at}")
        x = g.op("Add", x, y, name=f"sum{at}")
    g.output(conv(g, x, rng, channels, 2, 2, name="head"))
    return g


@pytest.mark.parametrize("signs", [(1, 1, 1), (1, -1, 1), (-1, -1, 1), (-1, -1, -1), (1, 1, -1)])
def test_preactivation_keeps_what_turns_a_channel_around(graph, fold, signs):
    """relu(s x + t) = s relu(x + t / s) for s > 0; a stream may carry -x, but not x and -x at once."""
    rng = np.random.default_rng(0)
    g = preactivation(graph, rng, signs)
    result = fold(g).agree(g.feeds(rng, N=2))
    assert {row.where for row in result.ledger.kept} == {f"norm{at}" for at in range(3) if signs[at] != signs[0]}
    for row in result.ledger.kept:
        assert f"Relu 'relu{row.where[-1]}' needs a scale above 0" in row.reason
        assert "channel 0 (1 in all) is scaled by a negative number" in row.reason or signs[0] < 0


def test_preactivation_whose_stream_is_read_as_it_is_keeps_every_negative_scale(graph, fold):
    rng = np.random.default_rng(0)
    signs = (-1, 1, -1)
    g = preactivation(graph, rng, signs)
    g.output(g.op("Sigmoid", "stem_out"))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert {"norm0", "norm2"} <= {row.where for row in result.ledger.kept}


@pytest.mark.parametrize(
    ("gamma", "beta", "said"),
    [
        (0.0, 0.5, "channel 1 (1 in all) is scaled by 0, and what others read"),
        (1e-6, 0.5, "would have to carry"),
        (0.0, 0.0, ""),
        (1e-6, 0.0, ""),
    ],
)
def test_a_channel_that_a_preactivation_norm_switches_off_leaves_where_its_beta_is_0(graph, fold, gamma, beta, said):
    """relu(0 x + beta) is no relu of x + t, but for beta = 0: what docs/folding.md advises."""
    rng = np.random.default_rng(0)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, 6, 6]), rng, 3, 3, 2, name="stem")
    scale, shift = np.array([1.0, gamma, 1.5]), np.array([0.1, beta, 0.2])
    y = g.op("Relu", g.op("BatchNormalization", x, scale, shift, np.zeros(3), np.ones(3), name="norm"))
    y = g.op("Conv", y, rng.normal(size=(3, 3, 3, 3)), pads=[1] * 4)
    g.output(conv(g, g.op("Add", x, y), rng, 3, 2, 2, name="head"))
    result = fold(g).agree(g.feeds(rng, N=2))
    kept = [row.reason for row in result.ledger.kept]
    assert len(kept) == bool(said)
    assert said in "".join(kept)


@pytest.mark.parametrize("source", ["input", "output"])
def test_a_map_that_does_nothing_leaves_the_names_of_outputs(graph, fold, source):
    """x * 1 as a graph output, where x is an input or another output."""
    g = graph()
    x = g.input("x", ["N", 3])
    if source == "output":
        x = g.op("Sigmoid", x)
        g.output(x)
    g.output(g.op("Mul", x, np.ones(3)))
    result = fold(g).folded().agree(g.feeds(np.random.default_rng(0), N=2))
    assert result.reasons == "it changes nothing"
    assert result.ops["Identity"] == 1


@given(SEED, st.sampled_from(["Add", "Mul"]), st.booleans())
def test_a_value_beside_its_opposite(graph, fold, seed, kind, one_each):
    """cat(x, -x), as a concatenated Relu has it: a scale goes into x, a shift for both does not, one for each does."""
    rng = np.random.default_rng(seed)
    g, number = graph(), rng.uniform(0.5, 2)
    x = g.op("Mul", g.input("x", ["N", 3, 4]), rng.uniform(0.5, 2))
    both = g.op("Concat", x, g.op("Neg", x), axis=1)
    shifts = np.concatenate([np.full((3, 1), number), np.full((3, 1), -number)]) if one_each else number
    g.output(conv(g, g.op("Sigmoid", g.op(kind, both, shifts)), rng, ins=6))
    fold(g).agree(g.feeds(rng, N=2))


def test_a_map_of_the_rows_behind_a_product_goes_in_front_of_it(graph, fold):
    """Of what a product writes columns alone are its own: that map is the convolution's, which lies beyond it."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", conv(g, g.input("x", ["N", 3, 4]), rng), rng.normal(size=(4, 5)))
    g.output(g.op("Mul", y, np.array([2.0, -3.0, 0.5]).reshape(3, 1)))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Conv": 1, "MatMul": 1}


@pytest.mark.parametrize("kind", ["Mul", "Div"])
@pytest.mark.parametrize("shown", [0, 1])
def test_signs_that_hang_together(graph, fold, kind, shown):
    """A Relu says that a product and its other factor have one sign, not that it is +: the map makes both negative."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, 4])
    factors = [conv(g, x, rng), conv(g, x, rng)]
    g.output(conv(g, g.op(kind, *factors), rng))
    g.output(conv(g, g.op("Relu", factors[shown]), rng))
    g.output(g.op("Mul", factors[1 - shown], np.full((3, 1), -2.0)))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Conv": 4, kind: 1, "Relu": 1}


def test_what_no_map_reaches_stays_what_it_is(graph, fold):
    """A map asks the convolution, for what it reads, and the product, for what it writes; between is Softmax's."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, 4])
    between = conv(g, x, rng, outs=4)
    g.output(g.op("Mul", x, np.full((1, 1), 2.0)))
    g.output(g.op("Mul", g.op("MatMul", between, rng.normal(size=(4, 3))), np.array([1.5, -2.0, 3.0])))
    g.output(g.op("Softmax", g.op("Transpose", between, perm=[0, 2, 1])))
    assert fold(g).agree(g.feeds(rng, N=2)).ops == {"Conv": 1, "Mul": 1, "MatMul": 1, "Transpose": 1, "Softmax": 1}


def test_a_value_of_unknown_sizes_beside_a_constant_that_has_them(graph, fold):
    """Rotary tables beside what a file without types leaves unknown: the check takes the constant's sizes."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", "R", "K"]), np.full((1, 1, 1), 0.5))
    g.output(g.op("MatMul", g.op("Mul", x, rng.normal(size=(4, 8))), rng.normal(size=(8, 3))))
    assert fold(g).folded().agree(g.feeds(rng, N=2, R=4, K=8)).ops == {"Mul": 1, "MatMul": 1}


def test_constants_behind_a_norm_over_the_image_stay_one_number_per_channel(graph, fold):
    """The norm's own scale has an image's places, which all have one gauge: what follows it needs no more numbers."""
    rng = np.random.default_rng(0)
    g = graph(opset=23)
    y = g.op("RMSNormalization", g.input("x", ["N", 3, 4, 4]), np.ones((4, 4)), axis=-2, epsilon=1e-6)
    y = g.op("Mul", y, rng.uniform(0.5, 2, (3, 1, 1)))
    y = g.op("ReduceMax", g.op("Max", y, rng.normal(size=(3, 1, 1))), np.array([2, 3]), keepdims=0)
    g.output(g.op("MatMul", y, rng.normal(size=(3, 5))))
    folding = fold(g).agree(g.feeds(rng, N=2))
    assert folding.actions == ["fused", "folded"]
    assert folding.ops == {"RMSNormalization": 1, "Max": 1, "ReduceMax": 1, "MatMul": 1}
    assert max(np.size(numpy_helper.to_array(item)) for item in folding.after.graph.initializer) == 16
    assert {hint.scale.size for hint in folding.result.derivation.hints} == {1, 3}


@pytest.mark.parametrize("reader", ["Conv", "Add"])
def test_a_constant_that_a_map_which_stays_shares_with_what_changes(graph, fold, reader):
    """The bias of a folded layer once took the name, and with it the numbers, of the constant that the map reads."""
    rng = np.random.default_rng(0)
    g = graph()
    x, shared = g.input("x", ["N", 4]), g.constant(rng.normal(size=4), "shared")
    if reader == "Conv":
        columns = g.op("Unsqueeze", x, np.array([2]))
        y = g.op("Squeeze", g.op("Conv", columns, rng.normal(size=(4, 4, 1)), shared), np.array([2]))
    else:
        y = g.op("Add", g.op("MatMul", x, rng.normal(size=(4, 4))), shared)
    y = g.op("Sigmoid", g.op("Mul", y, rng.uniform(0.5, 2, 4)))
    g.output(g.op("Tanh", g.op("Mul", y, shared, name="stays")))
    result = fold(g).agree(g.feeds(rng, N=3))
    assert sorted(result.actions) == ["folded", "kept"]


RARE = {
    "ReverseSequence": lambda g, y: g.op("ReverseSequence", y, np.array([4, 1, 3]), batch_axis=0, time_axis=2),
    "Compress": lambda g, y: g.op("Compress", y, g.constant(np.array([True, False, True, True])), axis=-1),
    "Trilu": lambda g, y: g.op("Trilu", y, np.array(1)),
    "CumSum": lambda g, y: g.op("CumSum", y, np.array(-1)),
    "TopK": lambda g, y: g.op("TopK", y, np.array([2]), axis=2, outputs=2)[0],
    "LpPool": lambda g, y: g.op("LpPool", y, kernel_shape=[2]),
    "GlobalLpPool": lambda g, y: g.op("GlobalLpPool", y),
}
"""Operators along the last axis of pictures of one line."""

SHIFTED = {"ReverseSequence", "Compress", "TopK"}
"""Those that pass a shift on."""


@pytest.mark.parametrize("kind", RARE)
@pytest.mark.parametrize("behind", [False, True])
def test_a_norm_behind_what_is_rare(graph, fold, kind, behind):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", [3, 3, 4])

    def scaled(value):
        scale = rng.uniform(0.5, 2, (3, 1))
        return g.op("Add", g.op("Mul", value, scale), rng.normal(size=(3, 1)) * (kind in SHIFTED))

    if behind:
        g.output(scaled(RARE[kind](g, conv(g, x, rng))))
    else:
        g.output(conv(g, RARE[kind](g, scaled(x)), rng))
    assert fold(g).folded().agree(g.feeds(rng)).ops == {"Conv": 1, kind: 1}


@pytest.mark.parametrize("behind", [False, True])
def test_a_scale_of_channels_passes_col2im(graph, fold, behind):
    """nn.Fold: three channels of blocks of four rows, each scaled by its channel's number."""
    rng = np.random.default_rng(0)
    g = graph(opset=18)
    scale, size, block = rng.uniform(0.5, 2, (3, 1)) * [[1], [-1], [1]], np.array([3, 4]), np.array([2, 2])
    x = g.input("x", ["N", 12, 6])
    if behind:
        y = g.op("Conv", x, rng.normal(size=(12, 12, 1)))
        y = g.known(g.op("Col2Im", y, size, block), "N", 3, 3, 4)
        g.output(g.op("Mul", y, scale[..., None]), shape=["N", 3, 3, 4])
    else:
        y = g.op("Mul", x, np.repeat(scale, 4, 0))
        y = g.known(g.op("Col2Im", y, size, block), "N", 3, 3, 4)
        g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1, 1))))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Conv": 1, "Col2Im": 1}


def test_a_shift_passes_the_logarithm_of_a_sum(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Add", g.op("Sigmoid", g.input("x", ["N", 3, 4])), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op("ReduceLogSumExp", y, np.array([2])), rng))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Sigmoid": 1, "ReduceLogSumExp": 1, "Conv": 1}


def test_places_that_topk_returns_stay_those_of_what_is_scaled(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    values, places = g.op("TopK", mapped(g, conv(g, g.input("x", ["N", 3, 4]), rng), rng, 1), np.array([2]), outputs=2)
    g.output(conv(g, values, rng))
    g.output(places, np.int64)
    fold(g).agree(g.feeds(rng, N=2))


def test_the_second_of_two_norms_in_a_row_names_what_took_it(graph, fold):
    """The first one, which disappears as well, lies between it and the convolution."""
    rng = np.random.default_rng(0)
    g = graph()
    y = conv(g, g.input("x", ["N", 3, 4]), rng)
    g.output(g.op("Sigmoid", g.batch_norm(g.batch_norm(y, 3, rng), 3, rng)))
    rows = list(fold(g).folded(2).ledger)
    assert [row.into for row in rows] == ["conv_0", "conv_0"]
    assert not any(row.reason for row in rows)


@pytest.mark.parametrize("opset", [9, 13, 21])
def test_views_that_undo_each_other_hide_nothing_from_a_norm(opset):
    """(N, 3, 4, 5) as (3 N, 20) and back: no map can be followed through it, and the way has to go first."""
    text = (
        f'<ir_version: 4, opset_import: ["": {opset}]> g (double[N,3,4,5] x) => (double[N,3,4,5] y) '
        "<double[3,3,1,1] w = {1, 2, 3, -1, 0.5, 0, 2, 1, 1}, int64[4] s = {-1, 3, 4, 5}, double[3] g = {1, -2, 0.5}, "
        "double[3] b = {0, 1, -1}, double[3] m = {0.1, 0, 2}, double[3] v = {1, 0.5, 2}> { c = Conv (x, w) "
        "f = Flatten <axis = 2> (c) r = Reshape (f, s) n = BatchNormalization (r, g, b, m, v) y = Sigmoid (n) }"
    )
    result = rewrite(ir.from_proto(onnx.parser.parse_model(text)))
    assert [(row.action, row.into) for row in result.ledger] == [("folded", "c")]
    assert [node.op_type for node in result.model.graph] == ["Conv", "Sigmoid"]


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin", "Hardmax"])
@pytest.mark.parametrize("negative", [False, True])
def test_a_temperature_in_front_of_a_decision(graph, fold, kind, negative):
    """The largest of s x + t stands where that of x does, for one s > 0 and t: nothing has to take them."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Mul", g.op("Sigmoid", g.input("x", ["N", 3, 4])), np.array(-0.07 if negative else 0.07))
    g.output(g.op(kind, g.op("Add", y, np.array(3.0)), axis=1), np.float64 if kind == "Hardmax" else np.int64)
    result = fold(g).agree(g.feeds(rng, N=2))
    if negative:
        result.kept("is scaled by a negative number", f"{kind} '", "with another the order would turn around")
    else:
        assert result.folded().ops == {"Sigmoid": 1, kind: 1}
