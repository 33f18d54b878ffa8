"""Identity, Dropout in evaluation, Reshape and Expand to the same sizes, a Slice of all there is (torch writes one for
``:``), and a Concat, Sum, Mean, Max or Min of one operand hand their input on: they leave the graph. Of a Concat of
many, so do operands without an element along its axis (what a rotary embedding of all of a head leaves alone).

So does a Where whose condition is one constant (torch.lerp's, which chooses a formula by its weight), with what it
never chooses.

A Dropout is removed where its training flag is absent or the constant false. A mask that is read stays (it is all
true), made by the node; a result that is a graph output keeps its name. Dropout in training mode, or with a computed
flag, stays as it is. Two sizes are the same where their numbers, their names or their origins are; a -1 of a Reshape is
where all others are, for its elements are as many before as after.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.edit import free_name, is_read, read_instead, standing_for, take_out, take_out_unread, take_place
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.sizes import size_of
from normdeploy.rewrite.weights.shape_computations import KnownShapes, integer_operand

_ENDLESS = 2**31 - 1
"""An end beyond every axis, as exporters write it: the largest int32, or int64."""

_OF_MANY = ("Concat", "Sum", "Mean", "Max", "Min")


class RemoveIdentities(ir.passes.InPlacePass):
    """Let what reads an Identity or an inactive Dropout read its input."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified, shapes = False, KnownShapes()
        for node in nodes_of(model):
            if not is_standard(node):
                continue
            shapes.visit(node)
            modified |= _without_empty_parts(node)
            chosen = _chosen(node)
            of_one = node.op_type in _OF_MANY and len(node.inputs) == 1
            same = node.op_type == "Identity" or _is_inactive(node) or _takes_all(node) or _keeps_sizes(node, shapes)
            whole = _only_part_of(node, shapes)
            if whole is not None:
                sequence = node.inputs[0]
                modified |= hand_on(node, whole)
                take_out_unread([sequence])
            elif chosen or of_one or same:
                others = [value for index, value in enumerate(node.inputs) if index != chosen]
                modified |= hand_on(node, node.inputs[chosen])
                take_out_unread(others)
        return ir.passes.PassResult(model, modified)


def _without_empty_parts(node: ir.Node) -> bool:
    """Let a Concat read no operand that has no element along its axis; one operand stays."""
    if node.op_type != "Concat":
        return False
    axis, operands = node.attributes.get_int("axis", 0), list(node.inputs)
    full = [value for value in operands if value is None or not _is_empty(value, axis)] or operands[:1]
    if len(full) == len(operands):
        return False
    read_instead(node, full)
    take_out_unread([value for value in operands if value not in full])
    return True


def _is_empty(value: ir.Value, axis: int) -> bool:
    return value.shape is not None and -len(value.shape) <= axis < len(value.shape) and value.shape[axis] == 0


def _chosen(node: ir.Node) -> int:
    """Return which operand a Where always hands on, as large as its result; 0 for none, and for other operators."""
    condition = constant_tensor(node.inputs[0]) if node.op_type == "Where" else None
    held = None if condition is None else condition.numpy()
    if held is None or not held.size or held.any() != held.all():
        return 0
    index, result = 1 if held.any() else 2, node.outputs[0]
    data = node.inputs[index]
    if data is None or data.shape is None or result.shape is None or len(data.shape) != len(result.shape):
        return 0
    sizes = [(size_of(data, axis), size_of(result, axis)) for axis in range(len(data.shape))]
    return index if all(a is not None and a == b for a, b in sizes) else 0


def _is_inactive(node: ir.Node) -> bool:
    if node.op_type != "Dropout":
        return False
    flag = optional(node, 2)
    if flag is None:
        return True
    value = constant64(flag)
    return value is not None and not value.any()


def _takes_all(node: ir.Node) -> bool:
    """Tell whether a Slice begins with the first element of each axis, ends with the last, and leaves none out."""
    if node.op_type != "Slice" or len(node.inputs) < 3:
        return False
    data, (starts, ends, axes, steps) = node.inputs[0], (integer_operand(node, index) for index in (1, 2, 3, 4))
    if starts is None or ends is None or data is None or starts.any() or (steps is not None and (steps != 1).any()):
        return False
    if any(optional(node, index) is not None and given is None for index, given in ((3, axes), (4, steps))):
        return False
    along = list(range(len(starts))) if axes is None else [int(axis) for axis in axes]
    return all(end >= _ENDLESS or _reaches(data, axis, int(end)) for axis, end in zip(along, ends, strict=True))


def _reaches(data: ir.Value, axis: int, end: int) -> bool:
    size = data.shape[axis] if data.shape is not None and -len(data.shape) <= axis < len(data.shape) else None
    return isinstance(size, int) and end >= size


def _only_part_of(node: ir.Node, shapes: KnownShapes) -> ir.Value | None:
    """Return what was split into parts as large as itself, where a SequenceAt reads the only one; None otherwise."""
    sequence = node.inputs[0] if node.op_type == "SequenceAt" else None
    split = None if sequence is None else sequence.producer()
    if split is None or not is_standard(split, "SplitToSequence") or len(node.inputs) < 2:
        return None
    data, sizes, position = split.inputs[0], optional(split, 1), integer_operand(node, 1)
    elements = None if sizes is None else shapes.elements(sizes)
    if data is None or data.shape is None or elements is None or position is None:
        return None
    axis = split.attributes.get_int("axis", 0)
    only = len(elements) == 1 and elements[0] == size_of(data, axis) and position.reshape(-1)[0] in (0, -1)
    return data if only else None


def _keeps_sizes(node: ir.Node, shapes: KnownShapes) -> bool:
    if node.op_type not in ("Reshape", "Expand") or len(node.inputs) < 2:
        return False
    data, target, result = node.inputs[0], node.inputs[1], node.outputs[0]
    sizes = None if target is None else shapes.elements(target)
    if data is None or data.shape is None or sizes is None or len(sizes) != len(data.shape):
        return False
    copies = 1 if node.op_type == "Expand" else 0 if not node.attributes.get_int("allowzero", 0) else None
    told = result.shape is not None and len(result.shape) == len(sizes)
    other = []
    for axis, size in enumerate(sizes):
        had = size_of(data, axis)
        if size is None or size not in (had, copies):
            other += [] if told and size_of(result, axis) == had else [size]
    return not other or (node.op_type == "Reshape" and other == [-1])


def hand_on(node: ir.Node, source: ir.Value | None) -> bool:
    """Let what reads an operator's result read another value, which is the same; tell whether the graph changed.

    Args:
        node: leaves, unless its result has to have the name that the graph gives it out by.
        source: None changes nothing.
    """
    result, graph = node.outputs[0], node.graph
    if source is None or graph is None:
        return False
    if result.is_graph_output():
        # the output's name must be made by a node of this graph, under no second name
        producer = source.producer()
        if producer is None or producer.graph is not graph or source.is_graph_output():
            return _as_identity(node, source, graph)
    take_place(source, result, named=False)
    take_out([node])
    if node.graph is not None and result.name is None:  # a mask is read still, of a result that gave its name away
        result.name = free_name(graph, f"{source.name}_unread")
    return True


def _as_identity(node: ir.Node, source: ir.Value, graph: ir.Graph) -> bool:
    if node.op_type == "Identity" or is_read(*node.outputs[1:]):
        return False
    result = node.outputs[0]
    same = standing_for(node, "Identity", [source])
    graph.insert_after(node, same)
    take_place(same.outputs[0], result)
    take_out([node])
    return True
