"""What is written into places of a value: maps pass it, and a graph convolution's norm goes into its layer."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

KINDS = ("ScatterElements", "ScatterND")


def places(g, kind):
    """Return indices of edges for an operator: one per element, or one per row."""
    ends = g.input("ends", ["E"], np.int64)
    column = g.op("Unsqueeze", ends, np.array([1]))
    if kind == "ScatterND":
        return column
    return g.op("Expand", column, g.op("Concat", g.op("Shape", ends), np.array([4]), axis=0))


def begin(g, how, x):
    """Return zeros or infinities of the nodes' shape."""
    shape = g.op("Concat", g.op("Shape", x, start=0, end=1), np.array([4]), axis=0)
    if how == "expanded":
        return g.known(g.op("Expand", np.float64(0), shape), "N", 4)
    number = {"zeros": 0.0, "least": -np.inf}[how]
    return g.known(g.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([number]))), "N", 4)


def graph_convolution(g, rng, kind, reduction, how, *, weighted=False):
    """Return the sum or maximum over a node's neighbours of W x."""
    x = g.input("x", ["N", 3])
    h = g.op("MatMul", x, rng.normal(size=(3, 4)))
    starts = g.input("starts", ["E"], np.int64)
    messages = g.op("GatherND", h, g.op("Unsqueeze", starts, np.array([1])))
    if weighted:
        messages = g.op("Mul", messages, g.op("Abs", g.input("weights", ["E", 1])))
    total = g.op(kind, begin(g, how, x), places(g, kind), messages, reduction=reduction)
    return g.known(total, "N", 4)


def fed(g, rng):
    return g.feeds(rng, N=5, E=7)  # places are drawn among the first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("reduction", "how", "weighted", "shifted"),
    [("add", "expanded", True, True), ("add", "zeros", True, False), ("max", "least", False, True)],
)
def test_a_norm_behind_a_graph_convolution_folds(graph, fold, kind, reduction, how, weighted, shifted):
    """Zeros that are repeated take up a shift; those that are filled in none; a maximum passes it on."""
    rng = np.random.default_rng(0)
    g = graph()
    y = graph_convolution(g, rng, kind, reduction, how, weighted=weighted)
    y = g.op("Mul", y, rng.uniform(0.5, 2, 4))
    y = g.op("Add", y, rng.normal(size=4)) if shifted else y
    g.output(g.op("Relu", y), None, ["N", 4])
    result = fold(g).agree(fed(g, rng))
    assert set(result.actions) == {"folded"}, result.reasons
    assert result.ops["Mul"] == int(weighted)
    assert result.ops["Add"] == int(how == "least"), "the layer had no bias"
    assert not result.ops["BatchNormalization"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", ["max", "min", "mul"])
def test_what_stays(graph, fold, kind, reduction):
    """A negative scale turns a maximum around, and no scale passes a product of several updates."""
    rng = np.random.default_rng(0)
    g = graph()
    y = graph_convolution(g, rng, kind, reduction, "zeros")
    y = g.op("Add", y, rng.normal(size=4))
    scale = np.array([1.0, -2.0, 0.5, 1.5]) if reduction in ("max", "min") else rng.uniform(0.5, 2, 4)
    g.output(g.op("Relu", g.op("Mul", y, scale)), None, ["N", 4])
    result = fold(g).agree(fed(g, rng))
    assert "kept" in result.actions
    assert kind in result.reasons


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_a_map_along_the_axis_of_the_places_stays(graph, fold, axis, reduction):
    rng = np.random.default_rng(0)
    g = graph()
    x, updates = (g.op("MatMul", g.input(name, ["N", 3]), rng.normal(size=(3, 4))) for name in "xu")
    at = g.input("at", ["N", 4], np.int64)
    y = g.op("ScatterElements", x, at, updates, axis=axis, reduction=reduction)
    g.output(g.op("Relu", g.op("Mul", y, rng.uniform(0.5, 2, 4), name="norm")))
    result = fold(g)
    result.agree(g.feeds(rng, N=5))
    assert [row.action for row in result.ledger] == ["folded" if axis == 0 else "kept"], result.reasons


@pytest.mark.parametrize("constant", ["value", "updates"])
def test_a_constant_takes_up_the_map(graph, fold, constant):
    """Elements that are set to a number: behind a map it is (c - t) / s."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Conv", g.input("x", [3 if constant == "updates" else 2, 3, 5, 5]), rng.normal(size=(4, 3, 1, 1)))
    at = np.array([[0], [1]])
    operands = (
        [x, at, rng.normal(size=(2, 4, 5, 5))] if constant == "updates" else [rng.normal(size=(3, 4, 5, 5)), at, x]
    )
    y = g.op("ScatterND", *operands)
    y = g.op("Add", g.op("Mul", y, rng.uniform(0.5, 2, (4, 1, 1))), rng.normal(size=(4, 1, 1)))
    g.output(g.op("Relu", y))
    assert fold(g).folded(1).agree(g.feeds(rng)).ops == {"Conv": 1, "ScatterND": 1, "Relu": 1}
