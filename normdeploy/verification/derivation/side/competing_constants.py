"""Numbers that are put in with what is computed, and of all of which the largest, or the smallest, is taken.

A Pad of -10000 in front of a maximum is minus infinity to all that is above -10000, and samples say something of it
only where it is what was taken. What the other graph puts in as well, or what can never be taken, need not be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from torch import Tensor

from normdeploy.graph import FLOATS
from normdeploy.graph.computed_constants import computed_constant
from normdeploy.graph.traits import Trait, has, is_standard

LARGEST = ("MaxPool", "GlobalMaxPool", "ReduceMax", "TopK", "ArgMax", "Max")
SMALLEST = ("ReduceMin", "ArgMin", "Min")

_TWO = 2
"""Operands of a Max of which one is a bound (:mod:`.clip_bounds`); of more, each constant competes."""

_SAME = 1e-5
"""Relative difference within which numbers are one: they are stored in float32, or computed there."""

_LAST = 1e30
"""Numbers of this size stand for infinities; what is beyond float16's is no number there."""

_LAST_HALF = float(np.finfo(np.float16).max)

_PADDED, _MODE = 2, "constant"

_PARTS = {"Where": slice(1, None), "ScatterElements": slice(0, None, 2), "ScatterND": slice(0, None, 2)}
"""Which operands hold what is in the result; all by default."""

_FEW = 16
"""Numbers of one constant that are looked at."""


class Fill(NamedTuple):
    """A number that competes. Args: number: it. beside: what it stands beside."""

    number: float
    beside: tuple[ir.Value, ...]


def takes_smallest(node: ir.Node) -> bool:
    """Tell whether an operator takes the smallest of what it reads."""
    return is_standard(node, *SMALLEST) or (is_standard(node, "TopK") and not node.attributes.get_int("largest", 1))


def fills(node: ir.Node) -> list[float]:
    """Return the numbers that were put in with what an operator takes the largest, or the smallest, of.

    Infinities of a type are left out, and what is never taken: 0 beside a Relu's result, of all of which it is the
    smallest.

    Args:
        node: any operator.
    """
    several = is_standard(node, "Max", "Min") and len(node.inputs) > _TWO
    if is_standard(node, "Max", "Min") != several or not is_standard(node, *LARGEST, *SMALLEST):
        return []
    sign = -1.0 if takes_smallest(node) else 1.0

    def is_taken(fill: Fill) -> bool:
        return any(_least(value, sign) < sign * fill.number for value in fill.beside)

    found = _fills(node.inputs) if several else _behind(node.inputs[0])
    return list(dict.fromkeys(fill.number for fill in found if is_taken(fill)))


def cuts_nothing(node: ir.Node) -> bool:
    """Tell whether a Max or a Min by a constant returns the other operand as it is, whatever that was computed of."""
    if not is_standard(node, "Max", "Min") or len(node.inputs) != 2:
        return False
    known = [computed_constant(value) for value in node.inputs]
    place = next((place for place, array in enumerate(known) if array is not None and array.size), None)
    other = None if place is None else node.inputs[1 - place]
    if place is None or other is None:
        return False
    sign, array = 1.0 if node.op_type == "Max" else -1.0, known[place]
    return array is not None and _least(other, sign) >= float((sign * array).max())


def own_fills(nodes: Iterable[ir.Node], others: Iterable[ir.Node]) -> dict[str, tuple[int, ...]]:
    """Return which fills of operators no operator of another graph has: their places, by the result.

    Args:
        nodes: of one graph. others: the other graph's.
    """
    known = [number for node in others for number in fills(node)]
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        numbers = enumerate(fills(node))
        own = tuple(place for place, number in numbers if not any(_alike(number, one) for one in known))
        found.update({str(node.outputs[0].name): own} if own else {})
    return found


def taken_fills(node: ir.Node, read: Tensor | None, made: Tensor) -> set[int]:
    """Return the places of those of an operator's fills that were the largest, or the smallest, somewhere.

    Args:
        node: the operator. read: its first operand. made: its first result.
    """
    if is_standard(node, "ArgMax", "ArgMin"):
        if read is None:
            return set()
        axis = node.attributes.get_int("axis", 0)
        made = read.amin(axis) if takes_smallest(node) else read.amax(axis)
    return {place for place, number in enumerate(fills(node)) if bool((made == number).any())}


def _behind(value: ir.Value | None) -> Iterator[Fill]:
    """Yield what was put in by the operators that made a value, with nothing but moves in between."""
    seen = set[ir.Value]()
    queue = [] if value is None else [value]
    for current in queue:
        node = current.producer()
        if current in seen or node is None:
            continue
        seen.add(current)
        if is_standard(node, "Pad") and node.attributes.get_string("mode", _MODE) == _MODE:
            yield from _padded(node)
        elif is_standard(node, "Concat", "Where", "ScatterElements", "ScatterND"):
            parts = [part for part in node.inputs[_PARTS.get(node.op_type, slice(None))] if part is not None]
            yield from _fills(parts)
            queue += [part for part in parts if not _numbers(part)]
            continue
        elif not has(node, Trait.MOVES):
            continue
        queue += [read for read in node.inputs[:1] if read is not None]


def _padded(node: ir.Node) -> Iterator[Fill]:
    """Yield what a Pad puts around what it reads: an operand, an attribute before operator set 11, or 0."""
    given = node.inputs[_PADDED] if len(node.inputs) > _PADDED else None
    found = [node.attributes.get_float("value", 0.0)] if given is None else _numbers(given)
    if node.inputs[0] is not None:
        yield from _beside((node.inputs[0],), found)


def _fills(parts: Iterable[ir.Value | None]) -> Iterator[Fill]:
    """Yield the numbers of the parts that are constant, beside the others."""
    numbers = [(part, _numbers(part)) for part in parts if part is not None]
    beside = tuple(part for part, found in numbers if not found)
    if beside:
        yield from _beside(beside, [number for _, found in numbers for number in found])


def _beside(parts: tuple[ir.Value, ...], numbers: Iterable[float]) -> Iterator[Fill]:
    last = _LAST_HALF if any(part.dtype is ir.DataType.FLOAT16 for part in parts) else _LAST
    yield from (Fill(number, parts) for number in numbers if abs(number) < last)


def _numbers(value: ir.Value) -> list[float]:
    """Return the few numbers that a constant of floats holds, itself or spread by an Expand or a ConstantOfShape."""
    node = value.producer()
    while node is not None and is_standard(node, "Expand", "Tile", "Reshape", "Unsqueeze", "Identity"):
        if node.inputs[0] is None:
            return []
        value = node.inputs[0]
        node = value.producer()
    if node is not None and is_standard(node, "ConstantOfShape"):
        held = node.attributes.get_tensor("value", None)
        array = np.zeros(1) if held is None else np.asarray(held.numpy(), np.float64)
        if held is not None and held.dtype not in FLOATS:
            return []
    else:
        found = computed_constant(value)
        array = np.zeros(0) if found is None else found
    if array.dtype.kind != "f":
        return []
    several = np.unique(array)
    return [float(number) for number in several] if several.size <= _FEW else []


_AT_LEAST = {
    "Relu": 0.0, "Abs": 0.0, "Sigmoid": 0.0, "HardSigmoid": 0.0, "Exp": 0.0, "Sqrt": 0.0, "Softmax": 0.0,
    "Softplus": 0.0, "ReduceL1": 0.0, "ReduceL2": 0.0, "ReduceSumSquare": 0.0, "Tanh": -1.0, "Sin": -1.0, "Cos": -1.0,
    "Erf": -1.0,
    "Softsign": -1.0, "Sign": -1.0, "Gelu": -0.17, "HardSwish": -0.375, "Mish": -0.31, "Elu": -1.0,
}  # fmt: skip
"""What no result of an operator is below, whatever it reads; of an Elu where its alpha is 1."""

_AT_MOST = {"Sigmoid": 1.0, "HardSigmoid": 1.0, "Softmax": 1.0, "Tanh": 1.0, "Sin": 1.0, "Cos": 1.0, "Erf": 1.0,
            "Softsign": 1.0, "Sign": 1.0, "LogSoftmax": 0.0}  # fmt: skip

_KEEPS = Trait.MOVES | Trait.KEEPS_ORDER


def _least(value: ir.Value, sign: float) -> float:
    """Return what a value is never below; with a sign of -1, of its negative."""
    array = computed_constant(value)
    if array is not None:
        return float((sign * array).min(initial=math.inf))
    node = value.producer()
    if node is None or node.domain != "":
        return -math.inf
    name, read = node.op_type, [one for one in node.inputs if one is not None]
    if has(node, _KEEPS) or name in ("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"):
        return _least(read[0], sign)
    if name == "Clip":
        ends = [computed_constant(one) for one in read[1:]]
        first = ends[0] if sign > 0 and ends else ends[1] if len(ends) > 1 else None
        return _least(read[0], sign) if first is None else max(_least(read[0], sign), sign * float(first.reshape(())))
    if name in ("Max", "Min"):
        parts = [_least(one, sign) for one in read]
        return max(parts) if (name == "Max") == (sign > 0) else min(parts)
    if name == "Concat":
        return min(_least(one, sign) for one in read)
    if name == "Elu" and node.attributes.get_float("alpha", 1.0) != 1.0:
        return -math.inf
    return _AT_LEAST.get(name, -math.inf) if sign > 0 else -_AT_MOST.get(name, math.inf)


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other))
