"""Reasons for which a map stays, of operators that few networks have and of numbers that none should have."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper
from refusal_graphs import Case, add, batch_norm, end, images, minus, mul, ranked, some, unranked, x


def tiny(g, value):
    return g.op("Mul", value, np.array([[1.0], [1e-200], [2]]))


def updates(g):
    return x(g, 2, 3, 4, name="z")


def written(g, value, new, *, depth=1, **attributes):
    """Two places of a value, of its first axis or of its first two."""
    return g.op("ScatterND", value, np.array([[0] * depth, [1] * depth]), new, **attributes)


def infinite(g):
    shape = g.op("Shape", images(g))
    return g.known(g.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([-np.inf]))), "N", 3, 4)


def deformed(g, value):
    return g.op("DeformConv", value, some(3, 3, 1, 1), x(g, "N", 2, 4, 4, name="at"))


def heads(g):
    """Three heads of two channels, each scaled by its own number, and merged with the samples."""
    scaled = g.op("Mul", x(g, "N", 6, 4), np.repeat(some(3, 1), 2, 0))
    return g.op("Reshape", scaled, np.array([-1, 2, 4]))


def rows(g):
    return x(g, "N", 12, 6)


def painted(g, value, block=None):
    """Three channels of blocks of four rows, as a picture."""
    block = np.array([2, 2]) if block is None else block
    return g.known(g.op("Col2Im", value, np.array([3, 4]), block), "N", 3, 3, 4)


def compared(g, value, number=0.0, op="Greater"):
    """What is told of a value, as a graph output."""
    return ((g.op(op, value, np.array(number) if isinstance(number, float) else number), np.bool_),)


SIGNS = {
    "Greater | compares with a number other than 0, which would have to be rounded anew": Case(
        lambda g: compared(g, mul(g, images(g), 3, 1), 0.5)
    ),
    "Less | compares what is computed with what is computed": Case(
        lambda g: compared(g, mul(g, images(g), 3, 1), images(g, name="z"), op="Less")
    ),
    "LessOrEqual | tells on which side of 0 it is, which a shift would change": Case(
        lambda g: compared(g, add(g, images(g), 3, 1), op="LessOrEqual")
    ),
    "GreaterOrEqual | tells on which side of 0 it is, and needs a scale above 0": Case(
        lambda g: compared(g, minus(g, images(g), 3, 1), op="GreaterOrEqual")
    ),
    "Sign | tells on which side of 0 it is, and needs a scale above 0": Case(
        lambda g: end(g, g.op("Sign", minus(g, images(g), 3, 1)))
    ),
    "any | behind it {} raises to a power what it scales by 0": Case(
        lambda g: end(g, g.op("Sqrt", g.op("Mul", images(g), np.array([[1.0], [0], [2]]))))
    ),
    "Sqrt | raises to a power, which leaves no place for a shift": Case(
        lambda g: end(g, g.op("Sqrt", add(g, images(g), 3, 1)))
    ),
    "Pow | takes a root, and needs a scale above 0: those of numbers below 0 are none": Case(
        lambda g: end(g, g.op("Pow", minus(g, images(g), 3, 1), np.array(1.5)))
    ),
    "Sqrt | takes a root, and needs a scale above 0: those of numbers below 0 are none": Case(
        lambda g: end(g, g.op("Sqrt", minus(g, images(g), 3, 1)))
    ),
    "Pow | has an exponent that is computed at run time": Case(
        lambda g: end(g, g.op("Pow", mul(g, images(g), 3, 1), x(g, name="p")))
    ),
    "Pow | has exponents of several elements, or one that is 0 or very large": Case(
        lambda g: end(g, g.op("Pow", mul(g, images(g), 3, 1), np.array([[2.0], [3], [2]])))
    ),
    "Pow | has an exponent that is no whole number, half or quarter": Case(
        lambda g: end(g, g.op("Pow", mul(g, images(g), 3, 1), np.array(1 / 3)))
    ),
}

RARE = SIGNS | {
    "MatMul | sums up too many shifts, each by a number of its own": Case(
        lambda g: g.op("Softmax", g.op("MatMul", add(g, x(g, "N", 2, 20000), 20000), some(20000)))
    ),
    "any | treats alike what is merged along an axis whose size is not known": Case(
        lambda g: end(g, g.op("Reshape", add(g, heads(g), 2, 1), np.array([-1, 3, 4])))
    ),
    "Einsum | multiplies what is merged along an axis whose size is not known": Case(
        lambda g: g.op(
            "MatMul", g.op("Einsum", heads(g), x(g, "M", 4, 4, name="z"), equation="bij,bjk->ik"), some(4, 2)
        )
    ),
    "Add | adds a number that would be lost beside a shift": Case(
        lambda g: end(g, g.op("Add", add(g, g.op("Sigmoid", images(g)), 3, 1), np.array(1e-20)))
    ),
    "Max | has an operand of unknown rank, or more elements than are followed": Case(
        lambda g: ranked(g, g.op("Max", add(g, x(g, "N", 3, 4), 3, 1), unranked(g)))
    ),
    "Where | has an operand of unknown rank, or more elements than are followed": Case(
        lambda g: ranked(
            g, g.op("Where", x(g, "N", 3, 4, name="c", dtype=np.bool_), add(g, x(g, "N", 3, 4), 3, 1), unranked(g))
        )
    ),
    "CumSum | adds up a shift from place to place": Case(
        lambda g: end(g, g.op("CumSum", add(g, images(g), 3, 1), np.array(2)))
    ),
    "CumSum | sums along the axis along which it varies": Case(
        lambda g: end(g, g.op("CumSum", mul(g, images(g), 4), np.array(2)))
    ),
    "Col2Im | adds up a shift as often as a place is reached": Case(
        lambda g: end(g, painted(g, add(g, rows(g), 12, 1)), spatial=2), opset=18
    ),
    "Col2Im | sums along the axis along which it varies": Case(
        lambda g: end(g, painted(g, mul(g, rows(g), 12, 1)), spatial=2), opset=18
    ),
    "Col2Im | has a block whose size is computed at run time": Case(
        lambda g: end(g, painted(g, mul(g, rows(g)), x(g, 2, name="block", dtype=np.int64)), spatial=2), opset=18
    ),
    "ReduceLogSumExp | sees every scale": Case(
        lambda g: end(g, g.op("ReduceLogSumExp", mul(g, images(g)), np.array([2])))
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
    "DeformConv | may sample zeros outside its input, which a shift would change": Case(
        lambda g: end(g, g.known(deformed(g, add(g, images(g, 4, 4), 3, 1, 1)), "N", 3, 4, 4), spatial=2), opset=19
    ),
    "RoiAlign | has no rule by which a scale or a shift passes it": Case(
        lambda g: end(g, g.op("RoiAlign", mul(g, images(g, 4, 4), 3, 1, 1), some(1, 4), np.array([0])), spatial=2)
    ),
    "ScatterND | adds a shift as often as an element has updates": Case(
        lambda g: end(g, written(g, images(g), add(g, updates(g), 3, 1), reduction="add"))
    ),
    "ScatterND | multiplies by it": Case(
        lambda g: end(g, written(g, images(g), mul(g, updates(g), 3, 1), reduction="mul"))
    ),
    "ScatterND | multiplies some elements, and a shift with them": Case(
        lambda g: end(g, written(g, add(g, images(g), 3, 1), updates(g), reduction="mul"))
    ),
    "ScatterND | compares, and needs a scale above 0: with another the other would win": Case(
        lambda g: end(g, written(g, minus(g, images(g), 3, 1), some(2, 3, 4), reduction="max"))
    ),
    "ScatterND | writes along the axis where it varies, at places that are known at run time only": Case(
        lambda g: end(g, written(g, mul(g, images(g), 3, 1), some(2, 4), depth=2))
    ),
    "ScatterND | has a value, indices or updates of unknown rank": Case(
        lambda g: end(g, g.known(g.op("ScatterND", mul(g, images(g), 3, 1), np.array([[0]]), unranked(g)), "N", 3, 4))
    ),
    "ConstantOfShape | is infinite, and needs a scale above 0: another changes the sign": Case(
        lambda g: end(g, written(g, infinite(g), minus(g, updates(g), 3, 1)))
    ),
    "Loop | computes in bodies of its own, whose inputs and outputs stay what they are": Case(
        '<ir_version: 10, opset_import: ["": 18]> g (double[2,3] x, bool go) => (double[2,3] y) '
        "<int64 n = {3}, double[3] s = {1, 2, 3}> { m = Mul(x, s) y = Loop(n, go, m) <body = turn (int64 i, bool on, "
        "double[2,3] h) => (bool still, double[2,3] next) { still = Identity(on) next = Sin(h) }> }"
    ),
    "any | the rank of its input is not known: onnx infers no shape behind {}; declare that of its result in the "
    "file (value_info) | 2": Case(lambda g: ranked(g, g.op("Mul", unranked(g), some(3)))),
    "any | it scales by {}, by which not even float64 can divide: set that scale to 0": Case(
        lambda g: end(g, g.op("Relu", g.op("Mul", images(g), np.array([[1.0], [5e-324], [2]]))))
    ),
    "any | it scales by {}, by which not even float64 can divide: set that scale to 0 | 2": Case(
        lambda g: end(g, batch_norm(g, images(g), np.array([1.0, 5e-324, 2]), *[np.ones(3)] * 3))
    ),
    "any | has numbers of its own at more than 262,144 places, which are not followed": Case(
        lambda g: g.op("Sigmoid", mul(g, g.op("Relu", mul(g, x(g, "N", 600, 500), 600, 1)), 500))
    ),
    "any | its scale times those of the maps beside it is more, or less, than float64 holds": Case(
        lambda g: end(g, g.op("Relu", tiny(g, g.op("Relu", tiny(g, images(g))))))
    ),
}
"""Operators that few networks have, and numbers that none should."""
