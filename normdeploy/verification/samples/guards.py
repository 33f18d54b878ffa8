"""What looks at an input before it is computed with: clamp, remainder, masked_fill, where, isnan.

Behind a guard between an integer and the table that it looks up, ids that lie beyond the table, or mean "nothing here",
are legitimate, and an example shows none.
The numbers at the guard's constants, next to them and far out are candidates; which of them the reference takes, it
says (checks/reference_runs.py). So are floats that are no numbers, where the graph looks for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.traits import Trait, has, is_standard

_PLACED = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})
"""Operators of which the second operand says places: a number that is none of them is refused."""

_FAR = tuple(2**bits + 2 ** (bits - 2) for bits in (8, 16, 32))
"""A little beyond what integers of these widths hold."""

_MOST = 24
"""Candidates that are tried at most, the nearest to the constants first."""


def guarded(value: ir.Value, dtype: np.dtype[Any]) -> list[int]:
    """Return the numbers worth trying of an integer input that is looked at before it is an index; [] of another.

    Args:
        value: the input. dtype: its own.
    """
    constants: dict[int, None] = {}
    queue, placed, looked = [value], False, False
    for current in queue:
        for node, index in current.uses():
            if has(node, Trait.SIZES):
                continue
            if is_standard(node, *_PLACED) and index == 1:
                placed = True
                continue
            if not has(node, Trait.POINTWISE | Trait.CONVERTS) and not (has(node, Trait.MOVES) and index == 0):
                return []  # it may be a size or a count, of which a large one has no end
            constants.update(dict.fromkeys(_constants(node)))
            looked |= not has(node, Trait.MOVES | Trait.CONVERTS)
            queue += [output for output in node.outputs if output not in queue and _is_counted(output)]
    if not placed or not looked:
        return []
    constants = constants or {0: None}
    info = np.iinfo(dtype)
    near = [number + step for number in constants for step in (0, -1, 1)]
    found = [n for n in (*near, *_FAR, *(-n for n in _FAR)) if info.min <= n <= info.max]
    return list(dict.fromkeys(found))[:_MOST]


def compared_numbers(value: ir.Value) -> list[float]:
    """Return the numbers that an input is compared with, or cut off at, with nothing but moves in front.

    Args:
        value: the input.
    """
    queue, found = [value], dict[float, None]()
    for current in queue:
        for node, index in current.uses():
            if has(node, Trait.COMPARES) or is_standard(node, "Clip", "Min", "Max"):
                known = [array for read in node.inputs if (array := constant64(read)) is not None and array.size]
                found.update((float(number), None) for array in known for number in array.reshape(-1)[:_MOST])
            elif has(node, Trait.MOVES | Trait.CONVERTS) and index == 0:
                queue += [output for output in node.outputs if output not in queue]
    return [number for number in found if np.isfinite(number)][:_MOST]


def compared_with_infinity(value: ir.Value) -> bool:
    """Tell whether a float input is added to what a graph compares with minus infinity, as attention's scores.

    Args:
        value: the input.
    """
    queue = [value]
    for current in queue:
        for node, index in current.uses():
            if has(node, Trait.COMPARES) and any(map(_is_lowest, node.inputs)):
                return True
            if has(node, Trait.ADDS) or (has(node, Trait.MOVES | Trait.CONVERTS) and index == 0):
                queue += [output for output in node.outputs if output not in queue]
    return False


def looked_at_for_nan(value: ir.Value) -> bool:
    """Tell whether a graph asks of what it computes from a float input whether that is a number: NaN, or infinite.

    Not where it asks it of a Softmax alone, as exporters write for attention: rows that are masked whole wake that.

    Args:
        value: the input.
    """
    queue, seen = [value], {value}
    for current in queue:
        made = current.producer()
        for node, _ in current.uses():
            if has(node, Trait.SIZES):
                continue
            if is_standard(node, "IsNaN", "IsInf") and not (made is not None and is_standard(made, "Softmax")):
                return True
            further = [output for output in node.outputs if output not in seen]
            queue += further
            seen.update(further)
    return False


def _is_lowest(value: ir.Value | None) -> bool:
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size == 1 and bool(np.isneginf(np.asarray(tensor.numpy(), np.float64)).all())


def _constants(node: ir.Node) -> Iterable[int]:
    for value in node.inputs:
        tensor = constant_tensor(value)
        if tensor is not None and tensor.size == 1 and tensor.dtype.is_integer():
            yield int(tensor.numpy().reshape(()))


def _is_counted(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_integer() or value.dtype is ir.DataType.BOOL
