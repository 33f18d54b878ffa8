"""Operands that are repeated to the other's shape are read as they are: x op Expand(c, shape of x) = x op c.

Elementwise operators broadcast, so that an Expand or a Tile of ones in front of them copies numbers for nothing; and
what multiplies is no constant any more, which hides it from every rule behind. What ``expand_as``,
``expand(x.shape)``, ``repeat`` and ``F.normalize`` write.

Dropped where, along every axis, the repeated operand is as large as the other operand or 1, shown by

1. a number or a name of a dimension (one name is one size), or
2. the element of the target that is the size of that axis of the other operand itself.

What is read instead is 1 or as large along each axis, and the result keeps the other operand's shape.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.edit import take_out, take_out_unread
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.sizes import size_of
from normdeploy.rewrite.weights.shape_computations import KnownShapes


class DropExpansions(ir.passes.InPlacePass):
    """Let elementwise operators of two operands read what an Expand or a Tile in front of them repeats."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified, shapes = False, KnownShapes()
        for node in nodes_of(model):
            if is_standard(node):
                shapes.visit(node)
            if has(node, Trait.BROADCASTS) and len(node.inputs) == 2:
                modified |= _drop(node, 0, shapes) | _drop(node, 1, shapes)
        return ir.passes.PassResult(model, modified)


def _drop(node: ir.Node, at: int, shapes: KnownShapes) -> bool:
    repeated, other = node.inputs[at], node.inputs[1 - at]
    source = None if repeated is None else repeated.producer()
    if repeated is None or other is None or not has(source, Trait.REPEATS):
        return False
    if source.inputs[0] is None or not covers(other, source, shapes):
        return False
    node.replace_input_with(at, source.inputs[0])
    target = source.inputs[1]
    take_out([source])
    take_out_unread([target])
    return True


def covers(other: ir.Value | None, source: ir.Node, shapes: KnownShapes) -> bool:
    """Tell whether what an operator repeats is nowhere larger than another value.

    Args:
        other: the value. source: the operator. shapes: what is known of targets, of all operators up to here.
    """
    small, result, target = source.inputs[0], source.outputs[0], source.inputs[1]
    if small is None or target is None or other is None or other.shape is None or small.shape is None:
        return False
    elements = shapes.elements(target)
    rank = len(elements) if elements is not None else len(result.shape) if result.shape is not None else None
    if rank is None or not len(small.shape) <= rank <= len(other.shape):
        return False
    for axis in range(rank):
        wanted = size_of(other, len(other.shape) - rank + axis)
        inner = axis - (rank - len(small.shape))
        one = inner < 0 or small.shape[inner] == 1
        known = result.shape is not None and len(result.shape) == rank and size_of(result, axis) == wanted
        times = None if elements is None else elements[axis]
        kept = times == 1 and (one or size_of(small, inner) == wanted)
        if source.op_type == "Tile":
            fits = kept or (one and (known or times == wanted))
        else:
            fits = kept or known or times == wanted
        if not fits:
            return False
    return True
