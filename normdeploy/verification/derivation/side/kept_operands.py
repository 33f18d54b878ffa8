"""Operators whose result is one of their operands, for every input, perhaps in another shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.verification.derivation.side.beyond import decides, is_cut
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def kept_operand(side: Side, node: ir.Node) -> ir.Value | None:
    """Return the operand that an operator's result is; None where it is none, or a constant."""
    law = _KEPT.get(kind(node))
    found = None if law is None else law(side, node)
    return None if found is None or side.is_constant(found) else found


def _first(side: Side, node: ir.Node) -> ir.Value | None:
    """Return the first operand of an operator where sizes beyond those that were tried do not decide on the others."""
    if not node.inputs or any(decides(side, read) for read in inputs_of(node)[1:]):
        return None
    return node.inputs[0]


def _of_one_element(side: Side, node: ir.Node) -> ir.Value | None:
    """Return a fold of axes of one element each, which is that element; where sizes vary, it may be of several."""
    return _first(side, node) if side.one_size else None


def _dropout(side: Side, node: ir.Node) -> ir.Value | None:
    inputs = inputs_of(node)
    if len(inputs) > 2 and (inputs[2] is None or side.constant(inputs[2]) is None or side.constant(inputs[2])):
        return None
    return _first(side, node)


def _chosen(side: Side, node: ir.Node) -> ir.Value | None:
    """Return what a Where always chooses, where its condition is one truth value at all places and all sizes."""
    condition = node.inputs[0]
    held = None if condition is None or decides(side, condition) else side.numbers(condition)
    if not held or not all(array.size for array in held):
        return None
    first = bool(held[0].any())
    return node.inputs[1 if first else 2] if all((array == first).all() for array in held) else None


def _joined_with_nothing(side: Side, node: ir.Node) -> ir.Value | None:
    """Return what a Concat joins with nothing but operands that have no element along its axis."""
    axis = node.attributes.get_int("axis", 0)
    (x, *others) = [value for value in inputs_of(node) if value is None or not _is_empty(side, value, axis)] or [None]
    return None if others else x


def _is_empty(side: Side, value: ir.Value, axis: int) -> bool:
    """Tell whether a value has no element along an axis, at all sizes."""
    shapes = side.shapes(value)
    empty = all(-len(shape) <= axis < len(shape) and shape[axis] == 0 for shape in shapes)
    return bool(shapes) and empty and not is_cut(side, value)


def _written_whole(side: Side, node: ir.Node) -> ir.Value | None:
    """Return the updates that a ScatterND writes into all rows of a value, one after the other.

    So torch's exporter writes ``x[...] += y`` on a view of the whole.
    """
    into, places, updates = node.inputs
    shapes = () if into is None else side.shapes(into)
    rows = None if places is None or decides(side, places) else side.numbers(places)
    if node.attributes.get_string("reduction", "none") != "none" or rows is None or not shapes or into is None:
        return None
    if is_cut(side, into) or len(rows) != len(shapes):
        return None
    every = all(np.array_equal(found, np.arange(shape[0])[:, None]) for found, shape in zip(rows, shapes, strict=True))
    return updates if every else None


_KEPT: Mapping[str, Callable[[Side, ir.Node], ir.Value | None]] = {
    **dict.fromkeys(("Identity", "Cast", "CastLike", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten"), _first),
    "Dropout": _dropout,
    "Where": _chosen,
    "Concat": _joined_with_nothing,
    "ScatterND": _written_whole,
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool"), _of_one_element
    ),
}
"""By operator; shapes and types are compared where this is asked."""
