"""The norm of a gathered row is the norm of the table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")


def embedding(g, rng, kind="LayerNormalization", bias=True, **attributes):
    x = g.op("Gather", "table", g.input("ids", ["N", 3], np.int64))
    operands = [rng.normal(size=4)] + ([rng.normal(size=4)] if bias and kind == "LayerNormalization" else [])
    return g.op(kind, x, *operands, epsilon=1e-3, **attributes)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["LayerNormalization", "RMSNormalization"]), st.sampled_from([-1, 2]),
       st.booleans())  # fmt: skip
def test_an_embedding_norm_goes_into_the_table(graph, fold, seed, kind, axis, bias):
    rng = np.random.default_rng(seed)
    g = graph(opset=23)
    g.constant(rng.normal(size=(5, 4)), name="table")
    g.output(embedding(g, rng, kind, bias, axis=axis))
    result = fold(g).folded().agree(g.feeds(rng, N=2), 1e-6)
    assert result.ops == {"Gather": 1}
    assert result.ledger[0].kind.startswith(kind)
    assert [item.name for item in result.after.graph.initializer] == ["table"]


def test_against_numpy(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    table, scale, shift = rng.normal(size=(5, 4)), rng.normal(size=4), rng.normal(size=4)
    g.constant(table, name="table")
    x = g.op("Gather", "table", g.input("ids", ["N", 3], np.int64))
    g.output(g.op("LayerNormalization", x, scale, shift, epsilon=1e-3))
    centred = table - table.mean(1, keepdims=True)
    # the attribute is stored as float32
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float64(np.float32(1e-3))) * scale + shift
    np.testing.assert_allclose(fold(g).weight("table"), expected, rtol=1e-12)


def test_a_map_between_goes_along(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(rng.normal(size=(5, 4)), name="table")
    x = g.op("Mul", g.op("Gather", "table", g.input("ids", ["N", 3], np.int64)), rng.normal(size=4))
    g.output(g.op("LayerNormalization", x, rng.normal(size=4), rng.normal(size=4)))
    assert fold(g).folded(2).agree(g.feeds(rng, N=2), 1e-6).ops == {"Gather": 1}


@pytest.mark.parametrize("case", ["read elsewhere", "dynamic table", "over both axes", "tied"])
def test_refusals(graph, fold, case):
    rng = np.random.default_rng(0)
    g = graph()
    if case == "dynamic table":
        g.input("table", [5, 4])
    else:
        g.constant(rng.normal(size=(500 if case == "tied" else 5, 4)), name="table")
    x = g.op("Gather", "table", g.input("ids", [1, 2], np.int64))
    if case == "over both axes":
        y = g.op("LayerNormalization", x, rng.normal(size=(2, 4)), axis=1)
    else:
        y = g.op("LayerNormalization", x, rng.normal(size=4), rng.normal(size=4))
    if case == "read elsewhere":
        y = g.op("Add", x, y)
    if case == "tied":
        y = g.op("Gemm", g.op("Reshape", y, np.array([2, 4])), "table", transB=1)
    g.output(y)
    result = fold(g).agree(g.feeds(rng), 1e-6)
    assert result.ops["LayerNormalization"] == 1
    assert "folded" not in result.actions
