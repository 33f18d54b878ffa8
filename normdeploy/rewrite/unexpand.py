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

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.edit import take_out, take_out_unread
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.recognise.trial_sizes import names_of

Size = int | str | tuple[ir.Value, int]
"""A dimension: a number, a name, or "that of this axis of this value"."""

_LONGEST = 12


class DropExpansions(ir.passes.InPlacePass):
    """Let elementwise operators of two operands read what an Expand or a Tile in front of them repeats."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified = False
        for graph in graphs_of(model):
            for node in list(graph):
                if has(node, Trait.BROADCASTS) and len(node.inputs) == 2:
                    modified |= _drop(node, 0) | _drop(node, 1)
        return ir.passes.PassResult(model, modified)


def _drop(node: ir.Node, at: int) -> bool:
    repeated, other = node.inputs[at], node.inputs[1 - at]
    source = None if repeated is None else repeated.producer()
    if repeated is None or other is None or not has(source, Trait.REPEATS):
        return False
    if source.inputs[0] is None or not _covers(other, source):
        return False
    node.replace_input_with(at, source.inputs[0])
    target = source.inputs[1]
    take_out([source])
    take_out_unread([target])
    return True


def _covers(other: ir.Value, source: ir.Node) -> bool:
    """Tell whether a repeated value is nowhere larger than the other operand."""
    small, result, target = source.inputs[0], source.outputs[0], source.inputs[1]
    if small is None or target is None or other.shape is None or small.shape is None:
        return False
    elements = _elements(target)
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


def size_of(value: ir.Value, axis: int) -> Size:
    """Return what is known of a dimension; equal where two dimensions are equal at all sizes."""
    known: Size | None = None
    for _ in range(_LONGEST):  # what operators in between were inferred to have may be less than what they read has
        dim = None if value.shape is None else value.shape[axis]
        if isinstance(dim, int):
            return dim
        if dim is not None and dim.value is not None and names_of(dim):
            known = dim.value
        before = _of_same_size(value, axis)
        if before is None:
            break
        value, axis = before
    return (value, axis) if known is None else known


def _of_same_size(value: ir.Value, axis: int) -> tuple[ir.Value, int] | None:
    """Return the operand, and its axis, that alone gives a result its size there; None where none certainly does."""
    node = value.producer()
    if value.shape is None or not has(node, Trait.POINTWISE | Trait.NORMALIZES):
        return None
    read = node.inputs[:1] if has(node, Trait.NORMALIZES) else node.inputs
    if any(operand is not None and operand.shape is None for operand in read):
        return None
    shaped = [(operand, axis + len(operand.shape) - len(value.shape)) for operand in read
              if operand is not None and operand.shape is not None]  # fmt: skip
    wide = [(operand, at) for operand, at in shaped if at >= 0 and operand.shape is not None and operand.shape[at] != 1]
    static = [(operand, at) for operand, at in wide if operand.shape is not None and isinstance(operand.shape[at], int)]
    return (static or wide)[0] if static or len(wide) == 1 else None


def _elements(target: ir.Value, depth: int = 0) -> list[Size] | None:
    """Return the elements of a shape that is put together from sizes and numbers; None where it is not."""
    constant = constant64(target)
    if constant is not None:
        return [int(item) for item in constant.reshape(-1)]
    node = target.producer()
    if node is None or depth > _LONGEST or not is_standard(node) or not node.inputs:
        return None
    data = node.inputs[0]
    if data is None:
        return None
    if node.op_type == "Shape":
        if data.shape is None:
            return None
        start = node.attributes.get_int("start", 0)
        end = node.attributes.get_int("end", len(data.shape))
        return [size_of(data, axis) for axis in range(len(data.shape))[start:end]]
    if node.op_type == "Concat":
        parts = [None if value is None else _elements(value, depth + 1) for value in node.inputs]
        return None if any(part is None for part in parts) else [item for part in parts for item in part or ()]
    found = _elements(data, depth + 1)
    if found is None:
        return None
    if node.op_type == "Gather":
        indices = constant64(node.inputs[1])
        picked = None if indices is None else [int(index) for index in indices.reshape(-1)]
        inside = picked is not None and all(-len(found) <= index < len(found) for index in picked)
        return [found[index] for index in picked] if picked is not None and inside else None
    if node.op_type == "Slice":
        bounds = [constant64(value) for value in node.inputs[1:]]
        whole = len(bounds) in (2, 3) and all(bound is not None and bound.size == 1 for bound in bounds)
        start, end = (int(np.asarray(bound).reshape(-1)[0]) for bound in bounds[:2]) if whole else (0, 0)
        return found[start:end] if whole else None
    keeps = node.op_type in ("Identity", "Squeeze", "Unsqueeze") or (node.op_type == "Cast" and _is_integer(node))
    if node.op_type == "Reshape":  # of one element, or a vector to a vector
        keeps = len(found) == 1 or (node.outputs[0].shape is not None and len(node.outputs[0].shape) == 1)
    return found if keeps else None


def _is_integer(node: ir.Node) -> bool:
    return node.attributes.get_int("to", 0) in (int(ir.DataType.INT64), int(ir.DataType.INT32))
