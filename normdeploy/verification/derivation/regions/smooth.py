"""Roots that are analytic: of sums of squares, or of what a positive number is added to.

The root of one number's square is its absolute value, which is two analytic functions: random points see one of them
where the sign changes far away.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import FLOATS
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_SUMS = frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare", "GlobalAveragePool", "AveragePool", "MatMul", "Conv"})
"""Operators that add up several numbers."""

_DEPTH = 32


def smooth(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator is analytic, whatever it reads: false of roots of what may be one number's square."""
    if kind(node) == "LpNormalization" and node.attributes.get_int("p", 2) != 2:
        return False
    if kind(node) == "ReduceL2":
        read = node.inputs[0]
        return read is not None and _shrinks(side, read, node.outputs[0])
    if kind(node) == "Sqrt":
        return _spread(side, node.inputs[0], 0)
    if kind(node) == "Pow":
        exponent = side.constant(node.inputs[1])
        if exponent is None or (exponent % 1 != 0).any():
            return _spread(side, node.inputs[0], 0)
    return True


def is_square(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator makes an even power of one value, which is never negative."""
    exponent = side.constant(node.inputs[1]) if kind(node) == "Pow" else None
    return _is_product_with_itself(node) if exponent is None else bool((exponent % 2 == 0).all())


def _is_product_with_itself(node: ir.Node) -> bool:
    return kind(node) == "Mul" and len(set(inputs_of(node))) == 1


def _shrinks(side: Side, x: ir.Value, y: ir.Value) -> bool:
    pairs = list(zip(side.shapes(x), side.shapes(y), strict=False))
    return bool(pairs) and all(len(a) != len(b) or a != b for a, b in pairs)


def _spread(side: Side, value: ir.Value | None, depth: int) -> bool:
    """Tell whether a sum, or an added positive number, stands in front of a root before any square does."""
    if value is None or depth > _DEPTH:
        return False
    if side.is_sized(value):
        return True  # a number that is the same for every input
    node = value.producer()
    if node is None:
        return False
    inputs = [read for read in inputs_of(node) if read is not None]
    if kind(node) in _SUMS:
        return kind(node) in ("MatMul", "Conv") or _shrinks(side, inputs[0], value)
    if kind(node) == "Pow" or _is_product_with_itself(node):
        return False
    if kind(node) == "Add":
        numbers = [side.constant(read) for read in inputs if side.type_of(read) in FLOATS]
        if any(array is not None and (array > 0).all() for array in numbers):
            return True
    return any(_spread(side, read, depth + 1) for read in inputs if not side.is_sized(read))
