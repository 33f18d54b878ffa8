"""What is known of a dimension: two that are equal at all sizes have one answer."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.dynamic_dims import names_of
from normdeploy.graph.traits import Trait, has

Size = int | str | tuple[ir.Value, int]
"""A dimension: a number, a name, or "that of this axis of this value"."""

_LONGEST = 12


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
