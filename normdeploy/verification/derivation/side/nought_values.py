"""Values that are zeros for every input and at every size: any scale of them is right, and no other tells it apart.

A state that begins with zeros is multiplied by what is scaled; its product is zeros, whatever it was scaled by.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import filling, inputs_of, kind

_DEPTH = 16
"""How many operators in a row are looked at."""

_PRODUCTS = frozenset({"Mul", "MatMul", "Einsum"})
"""Operators whose result is zeros where one operand is: nothing is added to what they multiply."""


def is_nought(side: Side, value: ir.Value | None, depth: int = 0) -> bool:
    """Tell whether a value is zeros, by the operators that make it, not by its numbers at some sizes.

    Args:
        side: the graph. value: of it. depth: operators behind it that were looked at.
    """
    if value is None or depth > _DEPTH:
        return False
    constant = side.constant(value)
    if constant is not None:
        return bool(constant.size) and not constant.any()
    node = value.producer()
    if node is None:
        return False
    if kind(node) == "ConstantOfShape":
        return not filling(node).any()
    operands = inputs_of(node)
    if kind(node) in _PRODUCTS:
        return any(is_nought(side, operand, depth + 1) for operand in operands)
    if has(node, Trait.JOINS):
        return all(is_nought(side, operand, depth + 1) for operand in operands)
    return has(node, Trait.MOVES) and is_nought(side, operands[0], depth + 1)
