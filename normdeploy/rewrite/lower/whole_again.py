"""Parts of a value that are joined again as they were cut are the value: Concat(x[:k], x[k:]) = x.

A norm that somebody wrote for each group of channels leaves this behind, once the maps of the groups are gone. A part
is what a Split, a Slice in steps of one, or a Gather of following indices takes of an axis of known size; one index
with the axis dropped and put back is one, too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.graph.edit import edit_each, take_out_unread
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.identities import hand_on
from normdeploy.rewrite.weights.shape_computations import integer_operand


@dataclass(frozen=True)
class _Part:
    """The elements from ``start`` to ``stop`` (not included) of one axis of a value."""

    of: ir.Value
    start: int
    stop: int


class WholeAgain(ir.passes.InPlacePass):
    """Let who reads all parts of a value, joined in their order, read the value."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        return edit_each(model, _join)


def _join(_graph: ir.Graph, node: ir.Node) -> bool:
    shape = node.outputs[0].shape
    if not is_standard(node, "Concat") or shape is None:
        return False
    axis = axis_of(node.attributes.get_int("axis", 0), shape.rank())
    parts = [None if value is None else _part(value, axis) for value in node.inputs]
    first, last = parts[0], parts[-1]
    if first is None or last is None or first.start or last.stop != _size(first.of, axis):
        return False
    for one, after in itertools.pairwise(parts):
        if one is None or after is None or one.of is not after.of or one.stop != after.start:
            return False
    read = list(node.inputs)
    if not hand_on(node, first.of):
        return False
    take_out_unread(read)
    return True


def _part(value: ir.Value, axis: int) -> _Part | None:
    """Return which part of another value a value is, along an axis."""
    node = value.producer()
    if node is None or node.inputs[0] is None:
        return None
    if is_standard(node, "Unsqueeze"):
        axes, inner = integer_operand(node, 1), node.inputs[0].producer()
        if axes is None or value.shape is None or [axis_of(int(at), value.shape.rank()) for at in axes] != [axis]:
            return None
        return None if inner is None else _taken(inner, axis, dropped=True)
    if is_standard(node, "Gather"):
        return _taken(node, axis, dropped=False)
    if is_standard(node, "Split"):
        return _split_off(node, value, axis)
    return _sliced(node, axis) if is_standard(node, "Slice") else None


def _taken(node: ir.Node, axis: int, *, dropped: bool) -> _Part | None:
    data, indices = node.inputs[0], integer_operand(node, 1) if is_standard(node, "Gather") else None
    if data is None or data.shape is None or indices is None or indices.ndim != (0 if dropped else 1):
        return None
    size = _size(data, axis)
    if size is None or not indices.size or axis_of(node.attributes.get_int("axis", 0), data.shape.rank()) != axis:
        return None
    places = indices.reshape(-1) % size
    start, stop = int(places[0]), int(places[0]) + places.size
    return _Part(data, start, stop) if np.array_equal(places, np.arange(start, stop)) else None


def _split_off(node: ir.Node, value: ir.Value, axis: int) -> _Part | None:
    data = node.inputs[0]
    assert data is not None
    if data.shape is None or axis_of(node.attributes.get_int("axis", 0), data.shape.rank()) != axis:
        return None
    start = 0
    for output in node.outputs:
        size = _size(output, axis)
        if size is None:
            return None
        if output is value:
            return _Part(data, start, start + size)
        start += size
    return None


def _sliced(node: ir.Node, axis: int) -> _Part | None:
    data, (starts, ends, axes, steps) = node.inputs[0], (integer_operand(node, at) for at in (1, 2, 3, 4))
    size = None if data is None else _size(data, axis)
    if data is None or data.shape is None or size is None or starts is None or ends is None:
        return None
    unread = [optional(node, at) is not None and held is None for at, held in ((3, axes), (4, steps))]
    along = [0] if axes is None else [axis_of(int(at), data.shape.rank()) for at in axes]
    if any(unread) or along != [axis] or len(starts) != 1 or (steps is not None and int(steps[0]) != 1):
        return None
    start, stop, _ = slice(int(starts[0]), int(ends[0])).indices(size)
    return _Part(data, start, stop) if start < stop else None


def _size(value: ir.Value, axis: int) -> int | None:
    dim = None if value.shape is None or axis >= value.shape.rank() else value.shape[axis]
    return dim if isinstance(dim, int) else None
