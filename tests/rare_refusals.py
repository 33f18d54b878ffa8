"""Reasons for which a map stays, of operators that few networks have and of numbers that none should have."""

from __future__ import annotations

import numpy as np
from refusal_graphs import Case, add, batch_norm, end, images, minus, mul, ranked, some, unranked


def tiny(g, value):
    return g.op("Mul", value, np.array([[1.0], [1e-200], [2]]))


RARE = {
    "CumSum | adds up a shift from place to place": Case(
        lambda g: end(g, g.op("CumSum", add(g, images(g), 3, 1), np.array(2)))
    ),
    "CumSum | sums along the axis along which it varies": Case(
        lambda g: end(g, g.op("CumSum", mul(g, images(g), 4), np.array(2)))
    ),
    "TopK | compares values along the axis along which it varies": Case(
        lambda g: end(g, g.op("TopK", mul(g, images(g), 4), np.array([2]), outputs=2)[0])
    ),
    "TopK | compares, and needs a scale above 0: with another the order would turn around": Case(
        lambda g: end(g, g.op("TopK", minus(g, images(g), 3, 1), np.array([2]), outputs=2)[0])
    ),
    "Trilu | writes zeros, which a shift would change": Case(
        lambda g: end(g, g.op("Trilu", add(g, images(g, "L"), 3, 1)))
    ),
    "LpPool | takes a maximum or a size, and needs a scale above 0": Case(
        lambda g: end(g, g.op("LpPool", minus(g, images(g), 3, 1), kernel_shape=[2]))
    ),
    "ScatterElements | has no rule by which a scale or a shift passes it": Case(
        lambda g: end(g, g.op("ScatterElements", mul(g, images(g), 3, 1), np.zeros((1, 3, 1), np.int64), some(1, 3, 1)))
    ),
    "Loop | computes in bodies of its own, whose inputs and outputs stay what they are": Case(
        '<ir_version: 10, opset_import: ["": 18]> g (double[2,3] x, bool go) => (double[2,3] y) '
        "<int64 n = {3}, double[3] s = {1, 2, 3}> { m = Mul(x, s) y = Loop(n, go, m) <body = turn (int64 i, bool on, "
        "double[2,3] h) => (bool still, double[2,3] next) { still = Identity(on) next = Sin(h) }> }"
    ),
    "any | the rank of its input is not known: give the model input shapes": Case(
        lambda g: ranked(g, g.op("Mul", unranked(g), some(3)))
    ),
    "any | it scales by {}, by which not even float64 can divide: set that scale to 0": Case(
        lambda g: end(g, g.op("Relu", g.op("Mul", images(g), np.array([[1.0], [5e-324], [2]]))))
    ),
    "any | it scales by {}, by which not even float64 can divide: set that scale to 0 | 2": Case(
        lambda g: end(g, batch_norm(g, images(g), np.array([1.0, 5e-324, 2]), *[np.ones(3)] * 3))
    ),
    "any | its scale times those of the maps beside it is more, or less, than float64 holds": Case(
        lambda g: end(g, g.op("Relu", tiny(g, g.op("Relu", tiny(g, images(g))))))
    ),
}
"""Operators that few networks have, and numbers that none should."""
