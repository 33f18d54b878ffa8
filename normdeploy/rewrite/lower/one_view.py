"""Views of views are one Reshape, and so is a Transpose in their row that moves axes of one element alone.

Reshape, Flatten, Squeeze and Unsqueeze keep the order of memory, and so does a Transpose where the axes of
more than one element stay in their order: what a row of them makes is a Reshape to its last shape, which moves nothing.
A Transpose that keeps every element where it is leaves. One that has no view beside it stays: a runtime may have a
product read it turned, or join it with another Transpose. Where the last shape is that of what is viewed, all leave.

At most one size of the last shape may be open: it is the -1 of the Reshape. A size that is open is never taken for 1.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.edit import only_reader, take_out, view_as
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.identities import hand_on

_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class OneView(ir.passes.InPlacePass):
    """Write each row of views as one Reshape; let Transposes leave that change nothing."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified = False
        for graph in graphs_of(model):
            for node in list(graph):
                if node.graph is None or not keeps_order(node):
                    continue
                if is_standard(node, "Transpose") and _sizes(node.inputs[0]) == _sizes(node.outputs[0]):
                    modified |= hand_on(node, node.inputs[0])
                elif not _goes_on(node):
                    modified |= _join(graph, node)
        return ir.passes.PassResult(model, modified)


def keeps_order(node: ir.Node) -> bool:
    """Tell whether an operator certainly leaves the elements in the order of memory."""
    if is_standard(node, *_VIEWS):
        return True
    sizes = _sizes(node.inputs[0]) if is_standard(node, "Transpose") else None
    if sizes is None:
        return False
    order = node.attributes.get_ints("perm", None) or range(len(sizes))[::-1]
    moved = [axis for axis in order if sizes[axis] != 1]
    return moved == sorted(moved)


def _sizes(value: ir.Value | None) -> list[int | None] | None:
    """Return a value's sizes, None for those that are open; None where there is no saying how many."""
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def _goes_on(node: ir.Node) -> bool:
    """Tell whether a row of views goes on behind an operator."""
    behind = only_reader(node.outputs[0])
    return (
        behind is not None
        and behind.graph is node.graph
        and behind.inputs[0] is node.outputs[0]
        and keeps_order(behind)
    )


def _join(graph: ir.Graph, last: ir.Node) -> bool:
    """Write the row of views that ends with an operator as one, where there are several and the shape allows it."""
    row, first = [last], last
    while (before := _before(first)) is not None:
        first = before
        row.append(first)
    source, sizes = first.inputs[0], _sizes(last.outputs[0])
    if len(row) == 1 or source is None or sizes is None or sizes.count(None) > 1 or 0 in sizes:
        return False
    if sizes == _sizes(source):
        hand_on(last, source)
    else:
        view_as(graph, last, source, [-1 if size is None else size for size in sizes])
    take_out(row[::-1])
    return True


def _before(node: ir.Node) -> ir.Node | None:
    """Return the view in front of a view, where nothing else reads it."""
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if value is None or producer is None or producer.graph is not node.graph or only_reader(value) is not node:
        return None
    return producer if keeps_order(producer) else None
