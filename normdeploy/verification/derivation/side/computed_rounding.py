"""How far rounding may have moved a constant that a graph computes from stored ones, and what float32 makes of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Array, Floats
from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, evaluate_node
from normdeploy.graph.operator_evaluation import as_constant, as_operand
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import radius
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def off_by_rounding(side: Side, value: ir.Value, number: Array) -> Array:
    """Return how far rounding may have moved a constant from what it was, through what it is computed by.

    Args:
        side: its graph. value: the constant. number: what it is.
    """
    dtype, node = side.stored_in(value), value.producer()
    if dtype is not None or node is None:
        return radius(number, dtype)
    operands = [None if read is None else side.fixed(read) for read in inputs_of(node)]
    place = 1 if kind(node) == "DequantizeLinear" else 0  # its result is proportional to its scale
    read, part = node.inputs[place], operands[place]
    if read is None or part is None or not (place or has(node, Trait.MOVES)):
        return np.zeros_like(number, np.float64)
    operands[place] = off_by_rounding(side, read, part)
    tensors = [None if array is None else as_operand(array) for array in operands]
    found = evaluate_node(node, tensors, opset_imports=side.imports)
    return np.asarray(np.abs(found[value.index() or 0].numpy()))


_UNIT = float(np.finfo(np.float32).eps) / 2

_MOST = 2.0**-10
"""What float32 may be off by, of the largest number: beyond that such a size would hide what is no rounding."""


def terms_of(side: Side, value: ir.Value) -> Floats | None:
    """Return the size of terms of which one rounding is what float32 makes of a constant that a graph computes.

    Numbers of a table of sines, or of what a layer makes of one, are units off where a tool computes it in float32, as
    the module does: an angle of 6 is off by more than a sine of 1e-4 may be.

    Args:
        side: the graph. value: the constant, or what is the same at each size.

    Returns:
        4 times what float32 is off by at most, over its unit roundoff; None where the constant is stored.
    """
    numbers = None if side.stored_in(value) is not None else side.numbers(value)
    if not numbers or side.type_of(value) != ir.DataType.FLOAT:
        return None
    try:
        found = _in_float32(side, value, {}).double().numpy()
    except (GraphError, RecursionError):
        return None
    if found.shape != numbers[0].shape or not np.isfinite(found).all():
        return None
    off, most = (float(np.abs(array).max(initial=0.0)) for array in (found - numbers[0], numbers[0]))
    return np.full((), 4 * off / _UNIT) if off <= _MOST * most else None


def _in_float32(side: Side, value: ir.Value, known: dict[ir.Value, torch.Tensor]) -> torch.Tensor:
    """Return a constant as float32's arithmetic computes it; what is known of others on the way is kept."""
    if value not in known:
        tensor, node = side.tensor(value), value.producer()
        if tensor is not None:
            known[value] = as_constant(tensor, torch.float32)
        elif side.type_of(value) not in FLOATS or node is None:
            numbers = side.numbers(value)
            if numbers is None:  # what an input decides, where only its size is read in the end
                raise GraphError(f"{value.name!r} is not known")
            known[value] = as_operand(numbers[0])
        else:
            operands = [None if read is None else _in_float32(side, read, known) for read in inputs_of(node)]
            found = evaluate_node(node, operands, dtype=torch.float32, opset_imports=side.imports)
            known.update(zip(node.outputs, found, strict=False))
    return known[value]
