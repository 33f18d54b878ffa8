"""A Concat of Concats along one axis is one: Concat(a, Concat(b, c), d) = Concat(a, b, c, d)."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.edit import edit_each, only_reader, read_instead, take_out
from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import is_standard


class OneConcat(ir.passes.InPlacePass):
    """Let a Concat read what another one, which nothing else reads, joins along the same axis."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        return edit_each(model, _join)


def _join(_graph: ir.Graph, node: ir.Node) -> bool:
    axis = _axis(node)
    inner = [value.producer() for value in node.inputs if value is not None]
    parts = [other for other in inner if other is not None and _is_part(other, node, axis)]
    if axis is None or not parts:
        return False
    joined: list[ir.Value | None] = []
    for value in node.inputs:
        made_by = None if value is None else value.producer()
        joined += [value] if made_by not in parts or made_by is None else made_by.inputs
    read_instead(node, joined)
    take_out(parts)
    return True


def _is_part(inner: ir.Node, outer: ir.Node, axis: int | None) -> bool:
    return inner.graph is outer.graph and _axis(inner) == axis and only_reader(inner.outputs[0]) is outer


def _axis(node: ir.Node) -> int | None:
    """Return the axis along which a Concat joins, from the front; None for another operator, or of unknown rank."""
    shape = node.outputs[0].shape if is_standard(node, "Concat") else None
    return None if shape is None else axis_of(node.attributes.get_int("axis", 0), shape.rank())
