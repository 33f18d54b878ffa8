"""How small a number that follows from sizes can be, whatever the sizes: what it is made of tells.

A size is at least 1, a Range by a positive step at least its start, and sums and products of such as are known to be
at least something are so in turn. No size is tried for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.verification.derivation.side.operands import inputs_of, kind

if TYPE_CHECKING:
    from normdeploy.verification.derivation.side.checked_side import Side

INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
REALS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold every size; others wrap or round what is beyond their digits."""

_KEEPS = ("Gather", "GatherND", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast", "Expand", "Slice", "Split")
"""Operators whose results are numbers of their first operand."""


def number_at(side: Side, value: ir.Value) -> list[Array] | None:
    """Return a number at each assignment; None where it is not known."""
    constant = side.constant(value)
    if constant is not None:
        return [constant] * len(side.runs)
    found = [run.get(value) for run in side.runs]
    return None if any(t is None or t.is_meta for t in found) else [t.numpy() for t in found if t is not None]


def least(side: Side, value: ir.Value | None) -> float:
    """Return what a number is never below, at any size; -inf where nothing is known."""
    if value is None:
        return -math.inf
    constant, node = side.constant(value), value.producer()
    if constant is not None:
        return float(constant.min()) if constant.size else math.inf
    if node is None:
        return -math.inf
    name, inputs = kind(node), inputs_of(node)
    if name in ("Shape", "Size"):
        return 1.0
    if name in _KEEPS:
        return -math.inf if name == "Cast" and not _keeps_numbers(side, node) else least(side, inputs[0])
    if name == "Range":
        return least(side, inputs[0]) if least(side, inputs[2]) > 0 else -math.inf
    if name == "ReduceProd":
        return 1.0 if least(side, inputs[0]) >= 1 else -math.inf
    if name not in ("Add", "Mul", "Concat", "Max"):
        return -math.inf
    each = [least(side, read) for read in inputs]
    if name == "Mul":
        return math.prod(each) if min(each) >= 0 and math.isfinite(max(each)) else -math.inf
    return sum(each) if name == "Add" else min(each) if name == "Concat" else max(each)


def least_of_each(side: Side, value: ir.Value | None) -> npt.NDArray[np.float64]:
    """Return the same of each element of a list of numbers; one number where it is that of all."""
    constant, node = side.constant(value), None if value is None else value.producer()
    if constant is not None:
        return np.asarray(constant, np.float64)
    if node is None or kind(node) not in ("Concat", "Identity", "Reshape"):
        return np.asarray(least(side, value))
    parts = inputs_of(node)[: None if kind(node) == "Concat" else 1]
    found = [None if part is None else number_at(side, part) for part in parts]
    if any(arrays is None or arrays[0].ndim != 1 for arrays in found):
        return np.asarray(least(side, value))
    sizes = [arrays[0].shape for arrays in found if arrays is not None]
    return np.concatenate([np.broadcast_to(least_of_each(side, one), n) for one, n in zip(parts, sizes, strict=True)])


def _keeps_numbers(side: Side, node: ir.Node) -> bool:
    """Tell whether a Cast leaves integers as they are: 0.1 n in integers is 0 for small n, 256 in 8 bits is 0."""
    made, read = side.type_of(node.outputs[0]), None if node.inputs[0] is None else side.type_of(node.inputs[0])
    return made in REALS or (made in INTEGERS and read in INTEGERS)
