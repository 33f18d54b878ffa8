"""Operators of two operator sets: whether they mean the same, though they may be written otherwise.

The axes of a reduction became an operand (13 for sums, 18 for the others), Softmax's axis stands for itself and no
longer for all behind it (13), modes of GridSample have other names (20), averages of windows that end beyond the border
are divided otherwise (19), recurrent operators may have the batch in front (14).
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.reduced_axes import reduced

_CHANGES = {
    "Softmax": (13,), "LogSoftmax": (13,), "Hardmax": (13,), "Dropout": (7, 12), "Pad": (11,), "Slice": (10,),
    "Clip": (6, 11), "Resize": (11, 13), "Upsample": (9,), "BatchNormalization": (7, 14), "GroupNormalization": (21,),
    "Squeeze": (13,), "Unsqueeze": (13,), "Split": (13, 18), "TopK": (10, 11), "Scan": (9,), "AveragePool": (7, 10, 19),
    "Add": (7,), "Sub": (7,), "Mul": (7,), "Div": (7,), "Pow": (7,), "And": (7,), "Or": (7,), "Xor": (7,),
    "Equal": (7,), "Greater": (7,), "Less": (7,), "Gemm": (7,), "PRelu": (7,), "Cast": (6,), "Reshape": (5,),
    "Tile": (6,), "Gather": (11,), "Concat": (4,), "GridSample": (20,), "DFT": (20,),
    "MaxPool": (10,), "ConstantOfShape": (9,),
    "ReduceSum": (13,), "ReduceMean": (18,), "ReduceMax": (18,), "ReduceMin": (18,), "ReduceProd": (18,),
    "ReduceL1": (18,), "ReduceL2": (18,), "ReduceLogSum": (18,), "ReduceLogSumExp": (18,), "ReduceSumSquare": (18,),
    "LSTM": (7, 14), "GRU": (7, 14), "RNN": (7, 14), "Attention": (24,), "NonMaxSuppression": (11,), "RoiAlign": (16,),
}  # fmt: skip
"""Operator sets from which on an operator means something else, or is written otherwise."""

Told = tuple[Side, ir.Node, Side, ir.Node]
"""Two operators of one kind, with their graphs."""


def told_alike(*both: *Told) -> frozenset[str] | None:
    """Return the attributes that two operators tell alike, in whatever way they are written; None for two meanings.

    Args:
        both: an operator and its graph, twice: side, node, side, node. They are of one kind.
    """
    if _written_alike(*both):
        return frozenset()
    ways = _WAYS.get(kind(both[1]), _reduces_alike if _is_reduction(both[1]) else None)
    return None if ways is None or min(both[0].opset(both[1]), both[2].opset(both[3])) < _FIRST else ways(*both)


def operands_of(*both: *Told) -> tuple[list[ir.Value | None], list[ir.Value | None]]:
    """Return what two operators read that mean the same (:func:`told_alike`), without what they tell alike.

    Args:
        both: an operator and its graph, twice: side, node, side, node.
    """
    ours, theirs = inputs_of(both[1]), inputs_of(both[3])
    return (ours, theirs) if _written_alike(*both) or not _is_reduction(both[1]) else (ours[:1], theirs[:1])


_FIRST = 7
"""Before this operator set operators broadcast otherwise."""


def _written_alike(a: Side, x: ir.Node, b: Side, y: ir.Node) -> bool:
    versions = _CHANGES.get(kind(x), ())
    return sum(a.opset(x) >= n for n in versions) == sum(b.opset(y) >= n for n in versions)


def _is_reduction(node: ir.Node) -> bool:
    return has(node, Trait.REDUCES) and not has(node, Trait.POOLS)


def _rank(side: Side, node: ir.Node) -> int | None:
    shapes = () if node.inputs[0] is None else side.shapes(node.inputs[0])
    return len(shapes[0]) if shapes else None


def _reduces_alike(a: Side, x: ir.Node, b: Side, y: ir.Node) -> frozenset[str] | None:
    rank = _rank(a, x)
    if rank is None or rank != _rank(b, y):
        return None
    axes = reduced(a, x, rank)
    return frozenset({"axes", "noop_with_empty_axes"}) if axes is not None and axes == reduced(b, y, rank) else None


def _along_the_last(a: Side, x: ir.Node, b: Side, y: ir.Node) -> frozenset[str] | None:
    """Softmax and kin along the last axis, behind which there is none."""
    for side, node in ((a, x), (b, y)):
        rank, axis = _rank(side, node), node.attributes.get_int("axis", -1 if side.opset(node) >= 13 else 1)
        if rank is None or axis_of(axis, rank) != rank - 1:
            return None
    return frozenset({"axis"})


def _absent(*names: str) -> Callable[[*Told], frozenset[str] | None]:
    """Return what tells whether both leave attributes at 0, in which alone operator sets differ."""

    def way(*both: *Told) -> frozenset[str] | None:
        found = any(node.attributes.get_int(name, 0) for node in (both[1], both[3]) for name in names)
        return None if found else frozenset(names)

    return way


def _samples_alike(*both: *Told) -> frozenset[str] | None:
    given = [node.attributes.get_string("mode", "linear") or "linear" for node in (both[1], both[3])]
    modes = {_NAMES.get(mode, mode) for mode in given}
    return frozenset({"mode"}) if len(modes) == 1 else None


_NAMES = {"bilinear": "linear", "bicubic": "cubic"}
"""What GridSample's modes were called before operator set 20."""

_WAYS: dict[str, Callable[[*Told], frozenset[str] | None]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _along_the_last),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _absent("layout")),
    "AveragePool": _absent("ceil_mode"),
    "GridSample": _samples_alike,
}
"""How operators that changed may mean the same all the same."""
