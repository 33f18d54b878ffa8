"""Where a map has to stay, its scale or its shift alone may go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)


def channel_last(g, rng, x, channels=6, *, positive=True):
    scale = rng.uniform(0.5, 2, channels) * (1 if positive else rng.permutation([-1, 1] * (channels // 2)))
    return g.op("Add", g.op("Mul", x, scale, name="norm"), rng.normal(size=channels))


@given(SEED)
def test_the_scale_goes_through_an_activation_that_stops_the_shift(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph()
    y = g.op("Relu", channel_last(g, rng, g.input("x", ["N", 5, 6])))
    g.output(g.op("MatMul", y, rng.normal(size=(6, 4)), name="linear"))
    result = (
        fold(g)
        .kept("its scale went into linear", "its shift cannot leave", "cuts at 0, which a shift would move")
        .agree(g.feeds(rng, N=2))
    )
    assert result.ops == {"Add": 1, "Relu": 1, "MatMul": 1}


@given(SEED)
def test_the_shift_goes_through_a_sum_that_stops_the_scale(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph()
    y = g.op("Add", channel_last(g, rng, g.input("x", ["N", 5, 6])), g.input("z", ["N", 5, 6]), name="sum")
    g.output(g.op("Add", g.op("MatMul", y, rng.normal(size=(6, 4)), name="linear"), rng.normal(size=4)))
    result = (
        fold(g)
        .kept(
            "its shift went into linear",
            "its scale cannot leave",
            "it meets what is behind it in Add 'sum' by another scale",
        )
        .agree(g.feeds(rng, N=2))
    )
    assert result.ops == {"Mul": 1, "Add": 2, "MatMul": 1}


@given(SEED)
def test_the_scale_goes_behind_where_the_shift_is_stopped(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph()
    y = g.op("Relu", g.op("MatMul", g.input("x", ["N", 5, 6]), rng.normal(size=(6, 6)), name="linear"))
    g.output(channel_last(g, rng, y))
    result = fold(g).kept("its scale went into linear").agree(g.feeds(rng, N=2))
    assert result.ops == {"MatMul": 1, "Relu": 1, "Add": 1}


@pytest.mark.parametrize(("dtype", "operators"), [(np.float16, ["Mul"]), (np.float32, ["BatchNormalization"])])
def test_along_channels_a_half_goes_where_no_batch_norm_can_be_written(graph, fold, dtype, operators):
    """In float16 a scale and a shift are two operators along any axis."""
    rng = np.random.default_rng(0)
    g = graph(dtype=dtype)
    x = g.input("x", ["N", 3, 4, 4])
    scaled = g.op("Mul", g.op("Sin", x), rng.uniform(0.5, 2, (3, 1, 1)), name="norm")
    y = g.op("Add", g.op("Add", scaled, rng.uniform(0.5, 2, (3, 1, 1))), x, name="sum")
    g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1, 1)), rng.normal(size=2), name="conv"))
    result = fold(g).agree_exactly(g.feeds(rng, N=2))
    assert result.ops == {"Sin": 1, "Add": 1, "Conv": 1, **dict.fromkeys(operators, 1)}


def test_one_pass_is_not_split(graph, fold):
    """Along axis 1 a BatchNormalization does both in one pass: a pre-activation norm stays whole."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Relu", g.batch_norm(g.input("x", ["N", 3, 4]), 3, rng, positive=True))
    g.output(g.op("Conv", y, rng.normal(size=(2, 3, 1)), name="conv"))
    result = fold(g).kept("its shift cannot leave", "cuts at 0, which a shift would move").agree(g.feeds(rng, N=2))
    assert result.ops == {"BatchNormalization": 1, "Relu": 1, "Conv": 1}


def test_neither_half_goes(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.output(g.op("Sigmoid", channel_last(g, rng, g.input("x", ["N", 5, 6]), positive=False)))
    result = fold(g).kept("Sigmoid").agree(g.feeds(rng, N=2))
    assert result.ops == {"Mul": 1, "Add": 1, "Sigmoid": 1}
    assert "went into" not in result.reasons


def test_a_scale_of_zero_cannot_be_divided_by(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.op("Mul", g.input("x", ["N", 5, 6]), np.arange(6.0)), rng.normal(size=6))
    g.output(g.op("MatMul", g.op("Relu", x), rng.normal(size=(6, 4))))
    result = fold(g).kept("its shift cannot leave", "cuts at 0, which a shift would move").agree(g.feeds(rng, N=2))
    assert result.ops == {"Mul": 1, "Add": 1, "Relu": 1, "MatMul": 1}


@pytest.mark.parametrize("seed", range(4))
def test_a_shift_that_is_undone_leaves_nothing_of_its_rounding(graph, fold, seed):
    """Ten maps that undo each other behind a scale that stays: what remains of their shifts is 1e-16 at most."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float64)
    y = g.op("Mul", g.op("Sin", g.input("x", ["N", 3, 256])), rng.uniform(0.5, 2, 256), name="norm")
    whole, total = np.ones(256), np.zeros(256)
    for at in range(10):
        y = g.op("Transpose", y, perm=[1, 0, 2])
        scale, shift = (1 / whole, -total / whole) if at == 9 else (rng.uniform(0.5, 2, 256), rng.normal(size=256))
        whole, total = whole * scale, total * scale + shift
        y = g.op("Add", g.op("Mul", y, scale), shift)
    g.output(y)
    result = fold(g).agree(g.feeds(rng, N=2))
    assert result.ops == {"Sin": 1, "Mul": 1}
    assert "went into ;" not in result.reasons
