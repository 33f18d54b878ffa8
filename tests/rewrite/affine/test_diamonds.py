"""A map in front of branches that meet again crosses the sum, product or Concat where they do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([np.float64, np.float32, np.float16])
BRANCHES = ["nothing", "Identity", "AveragePool", "MaxPool", "Neg", "ReduceMean", "twice"]
JOINTS = ["Add", "Sub", "Sum", "Concat", "Mul"]


def branch(g, x, kind):
    if kind == "nothing":
        return x
    if kind in ("AveragePool", "MaxPool"):
        return g.op(kind, x, kernel_shape=[3, 3], pads=[1] * 4)
    if kind == "ReduceMean":
        return g.op("Expand", g.op(kind, x, np.array([2, 3])), np.array([1, 1, 5, 5]))
    if kind == "twice":
        return g.op("Add", x, g.op("Identity", x))
    return g.op(kind, x)


def scaled(g, x, rng, channels, *, shift=True):
    shape = (channels, 1, 1)
    x = g.op("Mul", x, rng.uniform(0.5, 2, shape))
    return g.op("Add", x, rng.normal(size=shape)) if shift else x


@given(SEED, st.lists(st.sampled_from(BRANCHES), min_size=2, max_size=3), st.sampled_from(JOINTS), DTYPES)
def test_branches_that_meet(graph, fold, seed, kinds, joint, dtype):
    rng = np.random.default_rng(seed)
    kinds = kinds if joint in ("Sum", "Concat") else kinds[:2]
    g = graph(dtype=dtype)
    x = scaled(g, g.input("x", ["N", 3, 5, 5]), rng, 3, shift=joint != "Mul")
    branches = [branch(g, x, kind) for kind in kinds]
    y = g.op(joint, *branches, **({"axis": 1} if joint == "Concat" else {}))
    channels = 3 * len(kinds) if joint == "Concat" else 3
    g.output(g.op("Conv", y, rng.normal(size=(2, channels, 1, 1))))
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert result.ops["Mul"] == (joint == "Mul")


@given(SEED, st.sampled_from(["Add", "Concat"]), DTYPES)
def test_a_branch_that_absorbs_beside_one_that_passes(graph, fold, seed, joint, dtype):
    """x + f(x) with x behind a shift: f takes it into its weights, the sum hands it on."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.op("Add", g.input("x", ["N", 3, 5, 5]), rng.normal(size=(3, 1, 1)))
    y = x
    for _ in range(2):
        inner = g.op("Relu", g.op("Conv", y, rng.normal(size=(3, 3, 1, 1))))
        y = g.op("Add", y, inner)
    y = g.op(joint, y, x, **({"axis": 1} if joint == "Concat" else {}))
    g.output(g.op("Conv", y, rng.normal(size=(2, 3 if joint == "Add" else 6, 1, 1))))
    fold(g).folded().agree_exactly(g.feeds(rng, N=2))


@given(SEED)
def test_diamonds_in_a_row_and_inside_each_other(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph()
    x = scaled(g, g.input("x", ["N", 3, 5, 5]), rng, 3)
    pools = [x]
    for _ in range(3):  # spatial pyramid pooling, each pool behind the one before
        pools.append(branch(g, pools[-1], "MaxPool"))
    y = g.op("Concat", *pools, axis=1)
    y = g.op("Add", y, branch(g, y, "AveragePool"))
    g.output(g.op("Conv", y, rng.normal(size=(2, 12, 1, 1))))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops["Mul"] == 0


@given(SEED, st.booleans())
def test_a_joint_of_dynamic_size(graph, fold, seed, same):
    """Joined along an axis of unknown size the map must be the same on all."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = scaled(g, g.input("x", ["N", 3, "L", 2]), rng, 3)
    y = g.op("Concat", x, g.op("Neg", x) if not same else g.op("Identity", x), axis=2, name="join")
    g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1, 1))))
    result = fold(g).agree(g.feeds(rng, N=2, L=4))
    if same:
        result.folded()
    else:
        result.kept("Concat 'join' moves along the axis where it varies, by what is known at run time only")


def test_a_square(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 3, 5, 5]), rng.normal(size=(3, 1, 1)))
    g.output(g.op("Conv", g.op("Mul", x, x), rng.normal(size=(2, 3, 1, 1))))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Mul": 1, "Conv": 1}


@pytest.mark.parametrize(
    ("joint", "kinds", "shift", "words"),
    [
        ("Mul", ["nothing", "AveragePool"], True, "Mul 'joint' multiplies two values, which leaves no place for"),
        ("Div", ["nothing", "AveragePool"], True, "Div 'joint' divides, which leaves no place for a shift"),
    ],
)
def test_what_does_not_cross(graph, fold, joint, kinds, shift, words):
    rng = np.random.default_rng(0)
    g = graph()
    x = scaled(g, g.input("x", ["N", 3, 5, 5]), rng, 3, shift=shift)
    y = g.op(joint, *(branch(g, x, kind) for kind in kinds), name="joint")
    g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1, 1))))
    fold(g).kept(words).agree(g.feeds(rng, N=2))


def test_a_scale_that_a_quotient_cancels(graph, fold):
    """s x / mean(s x) = x / mean(x): nothing takes the scale, it is gone."""
    rng = np.random.default_rng(0)
    g = graph()
    x = scaled(g, g.input("x", ["N", 3, 5, 5]), rng, 3, shift=False)
    y = g.op("Div", x, branch(g, x, "AveragePool"), name="joint")
    g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1, 1))))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops == {"AveragePool": 1, "Div": 1, "Conv": 1}


def test_branches_that_are_scaled_differently(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 4, 4]), rng.normal(size=(4, 1)))
    y = g.op("Add", x, g.op("Transpose", x, perm=[0, 2, 1]), name="joint")
    g.output(g.op("Conv", y, rng.normal(size=(2, 4, 1))))
    fold(g).kept("the graph input 'x' is given, and it meets what is behind it in Add 'joint' by another scale").agree(
        g.feeds(rng, N=2)
    )


def test_a_third_branch_without_the_map(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = scaled(g, g.input("x", ["N", 3, 5, 5]), rng, 3)
    y = g.op("Sum", x, branch(g, x, "MaxPool"), g.input("z", ["N", 3, 5, 5]), name="joint")
    g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1, 1))))
    fold(g).kept("the graph input 'z' is given, and it meets what is behind it in Sum 'joint' by another scale").agree(
        g.feeds(rng, N=2)
    )


def test_attention_between_a_value_and_itself(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 5, 4]), np.array(1.5))
    y = g.op("MatMul", x, g.op("Transpose", x, perm=[0, 2, 1]), name="scores")
    g.output(g.op("MatMul", y, rng.normal(size=(5, 3))))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops == {"Transpose": 1, "MatMul": 2}  # the square of the scale, in the weights behind
