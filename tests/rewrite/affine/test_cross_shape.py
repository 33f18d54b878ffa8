"""Maps follow their axis through changes of shape, selections and joins; equal sizes never stand in for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.rewrite.affine import axes

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
RANK = st.integers(1, 3)
DTYPES = st.sampled_from([np.float64, np.float32, np.float16])


@given(st.data())
def test_groups_of_a_reshape_are_consecutive_and_as_large_on_both_sides(data):
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    flat = math.prod(sizes)
    target = []
    while flat > 1 and len(target) < 4:
        divisor = data.draw(st.sampled_from([d for d in range(1, flat + 1) if flat % d == 0]))
        target.append(divisor)
        flat //= divisor
    target.append(flat)
    found = axes.groups(sizes, target)
    assert [axis for inner, _ in found for axis in inner] == list(range(len(sizes)))
    assert [axis for _, outer in found for axis in outer] == list(range(len(target)))
    for inner, outer in found:
        assert math.prod(sizes[axis] for axis in inner) == math.prod(target[axis] for axis in outer)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (["N", 6, 6], ["N", 36], [((0,), (0,)), ((1, 2), (1,))]),
        (["N", 6, 6], ["N", 6, 6], [((0,), (0,)), ((1,), (1,)), ((2,), (2,))]),
        (["N", "L", 8], ["M", 8], [((0, 1), (0,)), ((2,), (1,))]),
        (["N", 12, "H", "W"], ["N", 3, 4, "H", "W"], [((0,), (0,)), ((1,), (1, 2)), ((2,), (3,)), ((3,), (4,))]),
        (["N", "L", 12], ["N", "L", 3, 4], [((0,), (0,)), ((1,), (1,)), ((2,), (2, 3))]),
        (["N", 4, "H", "W"], ["N", 4, None], [((0,), (0,)), ((1,), (1,)), ((2, 3), (2,))]),
        ([None, 4], [None, 4], [((0,), (0,)), ((1,), (1,))]),
        ([2, 3, 1], [6], [((0, 1, 2), (0,))]),
    ],
)  # fmt: skip
def test_groups_of_a_reshape(source, target, expected):
    assert [(tuple(i), tuple(o)) for i, o in axes.groups(source, target)] == expected


def linear(g, x, rng, size=6):
    """A Linear on the last axis."""
    return g.op("Add", g.op("MatMul", x, rng.normal(size=(g_last(g, x), size))), rng.normal(size=size))


def g_last(g, x):
    return g.sizes[x][-1]


@pytest.mark.parametrize("follow", [True, False])
def test_six_by_six(graph, fold, follow):
    """[N, 6, 6]: behind a Linear on the last axis a BatchNorm over axis 1 scales another axis of the same size."""
    rng = np.random.default_rng(0)
    g = graph()
    y = linear(g, g.input("x", ["N", 6, 6]), rng)
    if follow:  # the channel of the Linear comes to axis 1
        y = g.op("Transpose", y, perm=[0, 2, 1])
    g.output(g.batch_norm(y, 6, rng))
    result = fold(g).agree(g.feeds(rng, N=2))
    if follow:
        assert result.folded().ops == {"MatMul": 1, "Add": 1, "Transpose": 1}
    else:
        result.kept("in front of it the graph input 'x' is given")


@given(st.data(), RANK, st.booleans(), st.booleans(), DTYPES)
def test_transposes(graph, fold, data, rank, behind, default, dtype):
    """Conv and Transpose, a map on any axis of size 4: folded if and only if that axis is the Conv's channel."""
    rng = np.random.default_rng(data.draw(SEED))
    dims = rank + 2
    permutation = list(range(dims))[::-1] if default else data.draw(st.permutations(range(dims)))
    position = data.draw(st.integers(0, dims - 1))
    attributes = {} if default else {"perm": permutation}
    shape = [1] * dims
    shape[position] = 4
    g = graph(dtype=dtype)
    x, weight = g.input("x", [4] * dims), rng.normal(size=(4, 4, *[1] * rank))
    if behind:
        y = g.op("Transpose", g.op("Conv", x, weight), **attributes)
        y = g.op("Add", g.op("Mul", y, rng.normal(size=shape)), rng.normal(size=shape))
        folds = permutation[position] == 1
    else:
        y = g.op("Add", g.op("Mul", x, rng.normal(size=shape)), rng.normal(size=shape))
        y = g.op("Conv", g.op("Transpose", y, **attributes), weight)
        folds = permutation[1] == position
    g.output(y)
    result = fold(g).agree_exactly(g.feeds(rng))
    if folds:
        result.folded()
    else:
        assert "kept" in result.actions


@given(SEED, DTYPES)
def test_channel_shuffle(graph, fold, seed, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("Conv", g.input("x", ["N", 3, 5, 4]), rng.normal(size=(6, 3, 1, 1)))
    y = g.op("Reshape", y, np.array([0, 2, 3, 5, 4]))
    y = g.op("Transpose", y, perm=[0, 2, 1, 3, 4])
    y = g.op("Reshape", y, np.array([0, 6, 5, 4]))
    g.output(g.batch_norm(y, 6, rng))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Reshape": 2, "Transpose": 1}


@given(SEED, st.sampled_from(["Mul", "Div", "Sub"]), st.booleans(), DTYPES)
def test_numbers_of_channels_in_groups(graph, fold, seed, kind, moved, dtype):
    """One for each group and channel in it: along both axes that were one."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("Conv", g.input("x", ["N", 3, 5, 4]), rng.normal(size=(6, 3, 1, 1)))
    y = g.op("Reshape", y, np.array([0, 2, 3, 5, 4]))
    shape = (1, 2, 3, 1, 1)
    if moved:  # positions in front, as attention has its heads
        y, shape = g.op("Transpose", y, perm=[0, 1, 3, 4, 2]), (2, 1, 1, 3)
    if kind == "Sub":
        y = g.op("Sub", y, rng.normal(size=shape))
    y = g.op("Div" if kind == "Div" else "Mul", y, rng.uniform(0.5, 2, shape))
    y = g.op("Add", y, rng.normal(size=shape))
    g.output(g.op("Tanh", y))
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert not {"Mul", "Div", "Sub", "Add"} & set(result.ops)


def test_numbers_along_an_axis_of_two_axes_are_no_map(graph, fold):
    """4 of 6 x 6 by 4 x 3 x 3: the first is no part of either 6."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 6, 6]), rng.normal(size=(6, 6)))
    y = g.op("Reshape", y, np.array([0, 4, 3, 3]))
    g.output(g.op("Mul", y, rng.normal(size=(4, 3, 1))))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert not result.actions
    assert result.ops == {"MatMul": 1, "Reshape": 1, "Mul": 1}


@given(SEED, st.sampled_from(["Flatten", "Reshape"]), DTYPES)
def test_batch_norm_before_a_flattened_classifier(graph, fold, seed, kind, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.batch_norm(g.input("x", ["N", 3, 2, 4]), 3, rng)
    y = g.op("Flatten", x) if kind == "Flatten" else g.op("Reshape", x, np.array([-1, 24]))
    g.output(g.op("Gemm", y, rng.normal(size=(5, 24)), rng.normal(size=5), transB=1))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {kind: 1, "Gemm": 1}


@given(SEED, DTYPES)
def test_squeeze_and_unsqueeze(graph, fold, seed, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("Gemm", g.input("x", ["N", 3]), rng.normal(size=(3, 4)))
    y = g.op("Unsqueeze", y, np.array([2]))
    y = g.batch_norm(y, 4, rng)
    y = g.op("Squeeze", y, np.array([2]))
    g.output(g.batch_norm(y, 4, rng))
    assert fold(g).folded(2).agree_exactly(g.feeds(rng, N=2)).ops == {"Gemm": 1}  # the movements undo each other


@given(SEED, st.booleans(), DTYPES)
def test_expand(graph, fold, seed, varies, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("Conv", g.input("x", ["N", 3, 1]), rng.normal(size=(4, 3, 1)))
    y = g.op("Expand", y, np.array([1, 4, 5]))
    g.output(g.op("Mul", y, rng.normal(size=(5,) if varies else (4, 1))))
    result = fold(g).agree_exactly(g.feeds(rng, N=2))
    if varies:
        result.kept("Expand")
    else:
        assert result.folded().ops == {"Conv": 1, "Expand": 1}


@given(SEED, st.sampled_from([[1, 1, 3], [1, 2, 1]]), DTYPES)
def test_tile(graph, fold, seed, repeats, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.batch_norm(g.input("x", ["N", 3, 2]), 3, rng)
    y = g.op("Tile", x, np.array(repeats))
    g.output(g.op("Conv", y, rng.normal(size=(4, 3 * repeats[1], 1))))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Tile": 1}


@given(SEED, st.integers(0, 2), DTYPES)
def test_concat_behind(graph, fold, seed, axis, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.input("x", [2, 3, 5])
    parts = [g.op("Conv", x, rng.normal(size=(2 + index if axis == 1 else 4, 3, 1))) for index in range(3)]
    y = g.op("Concat", *parts, axis=axis)
    g.output(g.batch_norm(y, 9 if axis == 1 else 4, rng))
    assert fold(g).folded().agree_exactly(g.feeds(rng)).ops == {"Conv": 3, "Concat": 1}


@given(SEED, st.integers(0, 2), DTYPES)
def test_concat_in_front(graph, fold, seed, position, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    parts = [g.input(f"x{index}", ["N", 2, 4]) for index in range(3)]
    parts[position] = g.batch_norm(parts[position], 2, rng)
    y = g.op("Concat", *parts, axis=1)
    g.output(g.op("Conv", y, rng.normal(size=(4, 6, 1))))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Concat": 1}


def test_concat_with_a_branch_that_refuses(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 2, 4])
    y = g.op("Concat", g.op("Conv", x, rng.normal(size=(2, 2, 1))), g.op("Sigmoid", x, name="gate"), axis=1)
    g.output(g.batch_norm(y, 4, rng))
    fold(g).kept("in front of it Sigmoid 'gate' has no weights").agree(g.feeds(rng, N=2))


def test_concat_of_dynamic_sizes(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 2, "L"]), rng.normal(size=(2, 1)))
    y = g.op("Concat", x, g.input("y", ["N", 2, "M"]), axis=2, name="join")
    g.output(g.op("Conv", y, rng.normal(size=(4, 2, 1))))
    fold(g).kept("Concat 'join' moves along the axis where it varies, by what is known at run time only").agree(
        g.feeds(rng, N=2, L=3, M=4)
    )


@given(SEED, st.integers(0, 2), st.sampled_from(["Split", "Slice", "Gather"]), DTYPES)
def test_scaling_the_queries_goes_into_the_joint_projection(graph, fold, seed, which, kind, dtype):
    """[N, L, 3, D]: one of three selections is scaled and shifted; the others see s = 1 and t = 0."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("MatMul", g.input("x", ["N", 5, 4]), rng.normal(size=(4, 12)))
    y = g.op("Add", y, rng.normal(size=12))
    y = g.op("Reshape", y, np.array([0, 0, 3, 4]))
    if kind == "Split":
        parts = list(g.op("Split", y, np.array([1, 1, 1]), axis=2, outputs=3))
    elif kind == "Slice":
        bounds = [(np.array([at]), np.array([at + 1]), np.array([2])) for at in range(3)]
        parts = [g.op("Slice", y, *bound) for bound in bounds]
    else:
        parts = [g.op("Gather", y, np.array(at), axis=2) for at in range(3)]
    parts[which] = g.op("Add", g.op("Mul", parts[which], rng.normal(size=4)), np.float64(rng.normal()))
    for part in parts:
        g.output(g.op("Relu", part))
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert result.ops["Add"] == 1
    assert result.ops["Mul"] == 0


def test_two_selections_of_the_same_part(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 4]), rng.normal(size=(4, 6)))
    first = g.op("Slice", y, np.array([0]), np.array([3]), np.array([1]), name="first")
    second = g.op("Slice", y, np.array([2]), np.array([6]), np.array([1]), name="second")
    g.output(g.op("Mul", first, rng.normal(size=3)))
    g.output(g.op("Relu", second))
    fold(g).kept("the graph output 'relu_4_out' must stay what it is").agree(g.feeds(rng, N=2))


def test_a_selection_beside_another_reader(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 4]), rng.normal(size=(4, 6)))
    g.output(g.op("Mul", g.op("Slice", y, np.array([0]), np.array([3]), np.array([1])), rng.normal(size=3)))
    g.output(g.op("Relu", y, name="relu"))
    fold(g).kept("the graph output 'relu_out' must stay what it is").agree(g.feeds(rng, N=2))


@given(SEED, st.sampled_from([(0, 4, 1), (1, 6, 2), (-1, -7, -1), (5, -(2**62), -2)]), DTYPES)
def test_slices_in_front(graph, fold, seed, window, dtype):
    rng = np.random.default_rng(seed)
    start, end, stride = window
    kept = len(range(6)[slice(start, None if end < -7 else end, stride)])
    g = graph(dtype=dtype)
    x = g.batch_norm(g.input("x", ["N", 6, 4]), 6, rng)
    y = g.op("Slice", x, np.array([start]), np.array([end]), np.array([1]), np.array([stride]))
    g.output(g.op("Conv", y, rng.normal(size=(3, kept, 1))))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "Slice": 1}


@given(SEED, DTYPES)
def test_a_split_in_front_of_two_convolutions(graph, fold, seed, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.batch_norm(g.input("x", ["N", 6, 4]), 6, rng)
    left, right = g.op("Split", x, np.array([2, 4]), axis=1, outputs=2)
    g.output(g.op("Conv", left, rng.normal(size=(3, 2, 1))))
    g.output(g.op("Conv", right, rng.normal(size=(3, 4, 1))))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 2, "Split": 1}


def test_a_split_with_one_side_that_refuses(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 6, 4]), 6, rng)
    left, right = g.op("Split", x, np.array([2, 4]), axis=1, outputs=2)
    g.output(g.op("Conv", left, rng.normal(size=(3, 2, 1))))
    g.output(g.op("Sigmoid", right, name="gate"))
    fold(g).kept("behind it Sigmoid 'gate' sees every scale and every shift").agree(g.feeds(rng, N=2))


def test_a_gather_with_computed_indices(graph, fold):
    rng = np.random.default_rng(0)
    for axis in (1, 2):
        g = graph()
        x = g.batch_norm(g.input("x", ["N", 3, 3]), 3, rng)
        y = g.op("Gather", x, g.input("ids", [3], np.int64), axis=axis, name="pick")
        g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1))))
        result = fold(g).agree(g.feeds(rng, N=2))
        if axis == 1:
            result.kept("Gather 'pick' moves along the axis where it varies, by what is known at run time only")
        else:
            result.folded()


@pytest.mark.parametrize("batch", [0, 1])
def test_a_gather_nd_of_a_table_is_one_of_the_scaled_table(graph, fold, batch):
    rng, g = np.random.default_rng(0), graph()
    places = g.input("at", [5, 1] if batch else ["N", 2], np.int64)
    g.constant(rng.normal(size=(5, 4, 3)), name="table")
    chosen = g.op("GatherND", "table", places, batch_dims=batch)
    g.output(g.op("Mul", chosen, rng.normal(size=3)))
    fold(g).folded().agree({"at": rng.integers(0, 4, [5, 1] if batch else [6, 2])})


def test_instance_norm_with_running_statistics(graph, fold):
    """Exported as Reshape -> BatchNormalization -> Reshape over N * C repeated channels."""
    rng = np.random.default_rng(0)
    batch, channels = 3, 4
    g = graph()
    y = g.op("Conv", g.input("x", [batch, 2, 5]), rng.normal(size=(channels, 2, 1)))
    y = g.op("Reshape", y, np.array([1, batch * channels, 5]))
    operands = [np.tile(rng.uniform(0.5, 2, channels), batch) for _ in range(4)]
    y = g.op("BatchNormalization", y, *operands)
    g.output(g.op("Reshape", y, np.array([batch, channels, 5])))
    assert fold(g).folded().agree(g.feeds(rng)).ops["BatchNormalization"] == 0


@given(SEED, st.sampled_from(["DCR", "CRD"]), DTYPES)
def test_depth_to_space(graph, fold, seed, mode, dtype):
    """Pixel shuffle behind a convolution."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    y = g.op("Conv", g.input("x", ["N", 3, 2, 3]), rng.normal(size=(12, 3, 1, 1)))
    y = g.op("DepthToSpace", y, blocksize=2, mode=mode)
    g.output(g.batch_norm(y, 3, rng))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "DepthToSpace": 1}


@given(SEED, DTYPES)
def test_space_to_depth(graph, fold, seed, dtype):
    """The focus layer in front of a convolution."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.batch_norm(g.input("x", ["N", 3, 4, 6]), 3, rng)
    y = g.op("SpaceToDepth", x, blocksize=2)
    g.output(g.op("Conv", y, rng.normal(size=(4, 12, 1, 1))))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=2)).ops == {"Conv": 1, "SpaceToDepth": 1}


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("even", [True, False])
def test_positions_of_one_channel_must_agree(graph, fold, mode, even):
    rng = np.random.default_rng(0)
    scale = rng.normal(size=3)
    scale = (np.tile(scale, 4) if mode == "DCR" else np.repeat(scale, 4)) if even else rng.normal(size=12)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 12, 2, 3]), scale.reshape(12, 1, 1))
    y = g.op("DepthToSpace", x, blocksize=2, mode=mode, name="shuffle")
    g.output(g.op("Conv", y, rng.normal(size=(4, 3, 1, 1))))
    result = fold(g).agree(g.feeds(rng, N=2))
    if even:
        result.folded()
    else:
        result.kept("DepthToSpace 'shuffle' turns channels into positions of one channel, which have to agree")


@given(SEED, st.booleans(), DTYPES)
def test_negation(graph, fold, seed, behind, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.input("x", ["N", 3, 4])
    if behind:
        y = g.op("Neg", g.op("Conv", x, rng.normal(size=(3, 3, 1))))
        y = g.op("Relu", g.batch_norm(y, 3, rng))
    else:
        y = g.op("Conv", g.op("Neg", g.batch_norm(x, 3, rng)), rng.normal(size=(3, 3, 1)))
    g.output(y)
    assert fold(g).agree_exactly(g.feeds(rng, N=2)).ops["BatchNormalization"] == 0


@pytest.mark.parametrize("batch", [2, "N"])
def test_a_scale_crosses_a_pixel_unshuffle_whose_sizes_are_computed(graph, fold, batch):
    """As torch's exporter writes it: what lies behind the Reshape has sizes only once its target is evaluated."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", [batch, 3, 6, 8]), 3, rng)
    channels, *sizes = (g.op("Shape", x, start=at, end=at + 1) for at in (1, 2, 3))
    two, rest = np.array([2]), np.array([-1])
    rows, columns = (g.op("Div", size, two) for size in sizes)
    wide = g.op("Reshape", x, g.op("Concat", rest, channels, rows, two, columns, two, axis=0))
    turned = g.op("Transpose", wide, perm=[0, 1, 3, 5, 2, 4])
    target = g.op("Concat", rest, g.op("Mul", channels, np.array([4])), rows, columns, axis=0)
    y = g.op("Reshape", turned, target)
    g.output(g.op("Conv", y, rng.normal(size=(5, 12, 1, 1)), rng.normal(size=5), name="conv"))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops == {"Reshape": 2, "Transpose": 1, "Conv": 1}
