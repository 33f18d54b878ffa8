"""Heads that are merged with a batch of any size: a map per channel is one that begins again with each sample there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)
PLACES = 4


def conv(g, value, rng, channels, read):
    return g.op("Conv", value, rng.normal(size=(channels, read, 1)), rng.normal(size=channels))


def feeds(rng, batch, places=PLACES):
    return {"x": rng.normal(size=(batch, 3, places))}


def attention(graph, rng, *, heads=3, width=2, between=lambda _, value: value):
    """Values of heads, averaged by computed weights head by head, and a norm of all channels behind, cut at 0."""
    g = graph()
    channels = heads * width
    x = g.input("x", ["N", 3, PLACES])
    value = g.op("Reshape", conv(g, x, rng, channels, 3), np.array([-1, width, PLACES]))
    scores = g.op("Reshape", conv(g, x, rng, heads * PLACES, 3), np.array([-1, PLACES, PLACES]))
    value = between(g, g.op("Transpose", value, perm=[0, 2, 1]))
    mixed = g.op("MatMul", g.op("Softmax", scores), value)
    whole = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1]), np.array([-1, channels, PLACES]))
    g.output(g.op("Relu", g.batch_norm(whole, channels, rng, name="norm")))
    return g


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_a_norm_behind_merged_heads_goes_into_what_writes_their_values(graph, fold, heads):
    """Each head has a scale and a shift of its own for each of its channels, which one number for all would not be."""
    rng = np.random.default_rng(heads)
    result = fold(attention(graph, rng, heads=heads)).folded()
    for batch in (1, 2, 5):
        result.agree(feeds(rng, batch))
    assert "BatchNormalization" not in result.ops
    assert result.ops["Add"] + result.ops["Mul"] == 0


def test_an_operator_that_is_not_told_of_merged_heads_has_one_gauge_for_all_of_them(graph, fold):
    """A sum with a table for all heads: which head a row is of only the run tells."""
    rng = np.random.default_rng(0)
    g = attention(graph, rng, between=lambda g, value: g.op("Add", value, rng.normal(size=(PLACES, 2))))
    result = fold(g).kept("Add 'add", "merged along an axis whose size is not known")
    for batch in (1, 3):
        result.agree(feeds(rng, batch))


def test_heads_merged_in_front_of_the_samples_do_not_begin_again(graph, fold):
    """(heads, samples): head by head, all samples; the place of a head depends on how many there are."""
    rng = np.random.default_rng(0)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, PLACES]), rng, 6, 3)
    y = g.op("Reshape", x, np.array([-1, 3, 2, PLACES]))
    y = g.op("Reshape", g.op("Transpose", y, perm=[1, 0, 2, 3]), np.array([-1, 2, PLACES]))
    y = g.op("MatMul", y, g.op("Reshape", g.input("z", ["M", PLACES, PLACES]), np.array([-1, PLACES, PLACES])))
    g.output(g.op("Relu", g.batch_norm(g.op("Reshape", y, np.array([-1, 6, PLACES])), 6, rng, name="norm")))
    result = fold(g).kept("merges or repeats the axis along which it varies")
    for batch in (1, 3):
        result.agree(feeds(rng, batch) | {"z": rng.normal(size=(3 * batch, PLACES, PLACES))})


KINDS = ["Relu", "Transpose", "Slice", "Add", "Mul", "Max", "Where", "GatherElements", "MatMul", "none"]


@given(seed=SEED)
def test_whatever_stands_between_merging_and_parting(graph, fold, seed):
    """Views of a batch of any size, in groups that need not be the channels' own, and what may stand between."""
    rng = np.random.default_rng(seed)
    g = graph()
    channels, places = int(rng.choice([4, 6, 12])), int(rng.choice([1, 4]))
    y = conv(g, g.input("x", ["N", 3, places]), rng, channels, 3)
    for _ in range(int(rng.integers(1, 4))):
        width = int(rng.choice([1, 2, 3, 4, channels]))
        y = g.op("Reshape", y, np.array([-1, width, places]))
        kind = str(rng.choice(KINDS))
        if kind in ("Relu", "Add"):
            y = g.op(kind, y, *([rng.normal(size=(width, 1))] if kind == "Add" else []))
        elif kind == "Transpose":
            y = g.op("Transpose", y, perm=[0, 2, 1])
            y = g.op("Transpose", y, perm=[0, 2, 1])
        elif kind in ("Mul", "Max"):
            y = g.op(kind, y, y)
        elif kind == "Where":
            y = g.op("Where", np.array([[[True]]]), y, y)
        elif kind == "GatherElements":
            y = g.op("GatherElements", y, g.op("Expand", np.array([[[0]]]), g.op("Shape", y)), axis=2)
        elif kind == "Slice":
            y = g.op("Slice", y, np.array([0]), np.array([1 + places // 2]), np.array([2]))
            y = g.op("Concat", y, y, axis=2)
            places = 2 * min(places, 1 + places // 2)
        elif kind == "MatMul":
            y = g.op("MatMul", y, g.op("Softmax", g.op("MatMul", g.op("Transpose", y, perm=[0, 2, 1]), y)))
    y = g.op("Reshape", y, np.array([-1, channels, places]))
    g.output(g.op("Relu", g.batch_norm(y, channels, rng, name="norm", positive=bool(rng.integers(2)))))
    result = fold(g)
    for batch in (1, 2, 3):  # as many samples as all views have room for
        result.agree(feeds(rng, 12 * batch, g.sizes["x"][2]))


def test_what_is_gathered_of_merged_heads_is_one_cell(graph, fold):
    """Disentangled attention (DeBERTa) picks scores of heads that are merged with the samples."""
    rng = np.random.default_rng(3)
    g = graph()
    x = conv(g, g.input("x", ["N", 3, PLACES]), rng, 6, 3)
    y = g.op("Reshape", x, np.array([-1, 2, PLACES]))
    y = g.op("GatherElements", y, g.op("Expand", np.array([[[0]]]), g.op("Shape", y)), axis=1)
    g.output(g.op("Softmax", g.op("Mul", y, np.array(0.3), name="map")))
    result = fold(g).folded()
    for batch in (1, 3):
        result.agree(feeds(rng, batch))
