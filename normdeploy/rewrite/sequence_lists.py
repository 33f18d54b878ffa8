"""Sequences whose elements are known values become these values: what a list of tensors was written as.

torch's older exporter writes a list as SequenceEmpty and a SequenceInsert per element, or as SequenceConstruct, and
reads it by SequenceAt, SequenceLength and ConcatFromSequence (``cat`` and ``stack``). Nothing can follow a channel
through a sequence. Of elements e_0, e_1, ...::

    SequenceAt(s, i) = e_i      SequenceLength(s) = n
    ConcatFromSequence(s) = Concat(e_0, e_1, ...), each behind an Unsqueeze where it makes a new axis

Rewritten where every position is constant. Elements that SplitToSequence makes: :mod:`.sequence_splits`.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.edit import free_name, put_constant, take_out, take_out_unread, take_place
from normdeploy.graph.operator_inputs import optional, required
from normdeploy.graph.traits import is_standard


def resolve_list(graph: ir.Graph, node: ir.Node) -> bool:
    """Let what reads a sequence of known elements read these; tell whether it did.

    Args:
        graph: holds the operator.
        node: any operator; one that reads a sequence is replaced, with what made it where nobody else reads it.
    """
    if not is_standard(node, "SequenceAt", "SequenceLength", "ConcatFromSequence"):
        return False
    found = _elements(required(node, 0))
    new = None if found is None else _read(graph, node, found)
    if new is None:
        return False
    old, read = node.outputs[0], list(node.inputs)
    apart = is_standard(node, "SequenceAt") and old.is_graph_output()  # an element keeps its own name
    if apart:
        keeper = ir.Node("", "Identity", [new], outputs=[ir.Value(type=old.type, shape=old.shape)])
        graph.insert_before(node, keeper)
        new = keeper.outputs[0]
    take_place(new, old, named=not is_standard(node, "SequenceAt"))
    take_out([node])
    take_out_unread(read)
    return True


def _elements(sequence: ir.Value) -> list[ir.Value] | None:
    """Return the elements of a sequence; None where they are not known."""
    later: list[ir.Node] = []
    maker = sequence.producer()
    while maker is not None and is_standard(maker, "SequenceInsert", "SequenceErase", "Identity"):
        later.append(maker)
        maker = required(maker, 0).producer()
    if maker is None or not is_standard(maker, "SequenceConstruct", "SequenceEmpty"):
        return None
    found = [value for value in maker.inputs if value is not None]
    for node in reversed(later):
        if is_standard(node, "Identity"):
            continue
        inserts = is_standard(node, "SequenceInsert")
        given = optional(node, 2 if inserts else 1)
        place = len(found) - (not inserts) if given is None else _place(given, len(found), behind=inserts)
        if place is None or place < 0:
            return None
        if inserts:
            found.insert(place, required(node, 1))
        else:
            del found[place]
    return found


def _place(position: ir.Value, count: int, *, behind: bool = False) -> int | None:
    """Return which of some elements a position names; None where it is computed or names none.

    Args:
        position: negative ones count from the end.
        count: of elements.
        behind: whether ``count`` itself names the place behind the last one.
    """
    array = constant64(position)
    index = None if array is None or array.size != 1 else int(array.reshape(-1)[0])
    if index is None or not -count <= index < count + behind:
        return None
    return index + count if index < 0 else index


def _read(graph: ir.Graph, node: ir.Node, elements: list[ir.Value]) -> ir.Value | None:
    """Return what an operator makes of a sequence's elements; None where that is not known."""
    old, stem = node.outputs[0], node.name or node.outputs[0].name or "sequence"
    if is_standard(node, "SequenceAt"):
        place = _place(required(node, 1), len(elements))
        return None if place is None else elements[place]
    if is_standard(node, "SequenceLength"):
        return put_constant(graph, len(elements), f"{stem}.length")
    if not elements:
        return None
    axis = node.attributes.get_int("axis", 0)
    if node.attributes.get_int("new_axis", 0):
        elements = [_wider(graph, node, value, axis, stem) for value in elements]
    result = ir.Value(name=free_name(graph, f"{stem}.joined"), type=old.type, shape=old.shape)
    attributes = [ir.AttrInt64("axis", axis)]
    joined = ir.Node("", "Concat", elements, attributes=attributes, outputs=[result], name=node.name,
                     metadata_props=dict(node.metadata_props))  # fmt: skip
    graph.insert_before(node, joined)
    return result


def _wider(graph: ir.Graph, node: ir.Node, value: ir.Value, axis: int, stem: str) -> ir.Value:
    """Return a value with a new axis."""
    axes = put_constant(graph, [axis], f"{stem}.axis")
    result = ir.Value(name=free_name(graph, f"{stem}.element"), type=value.type)
    graph.insert_before(node, ir.Node("", "Unsqueeze", [value, axes], outputs=[result]))
    return result
