"""Values that are integers: what stands for a float value x = step (q - zero), and which integers q may be.

Integers come from QuantizeLinear, Round, Sign, a comparison, or are integers in the graph; operators that move
elements, and MaxPool, are as well applied to q as to x. A weight is integers times a step per output channel, stored so
(DequantizeLinear) or as the floats that such integers make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats, Ints
from normdeploy.graph import FLOATS, constant64
from normdeploy.graph.edit import is_read
from normdeploy.graph.linear_view import Form, Linear
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.operators.narrow_types import ENDS, quantized_type
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.integer.monotone import Clamp

Range = tuple[int, int]

BYTES = {dtype: ENDS[dtype] for dtype in (ir.DataType.UINT8, ir.DataType.INT8)}
"""The types that integer layers read, and their ends."""

_OTHERS = (ir.DataType.UINT4, ir.DataType.INT4, ir.DataType.UINT16, ir.DataType.INT16)
_TYPES = {**BYTES, **{dtype: ENDS[dtype] for dtype in _OTHERS}, ir.DataType.BOOL: (0, 1)}
_LONGEST = 64
"""Operators between a layer and the integers it reads, at most."""

_GRID = 1e-12
"""Float weights are integers times a step if they are within this of it, relative to the largest."""


class Stays(Exception):
    """Something cannot be done on integers; the text is a clause without subject, for a reason in the ledger."""


class Given(Stays):
    """What would be rounded is what the graph is given: there is no accumulator in front of it."""


@dataclass(frozen=True)
class Source:
    """What integers a value stands for.

    Args:
        integers: q; a float value that is always an integer where there is no other.
        step, zero: x = step (q - zero).
        low, high: q's range.
        moves: operators between q and x that move elements, the first one first.
    """

    integers: ir.Value
    step: Fraction
    zero: int
    low: int
    high: int
    moves: tuple[ir.Node, ...] = ()

    @property
    def centred(self) -> Range:
        """The range of q - zero."""
        return self.low - self.zero, self.high - self.zero


def scalar(value: ir.Value | None) -> Fraction | None:
    """Return a constant of one number, exactly; None of anything else."""
    array = constant64(value)
    if array is None or array.size != 1 or not np.isfinite(np.asarray(array, np.float64)).all():
        return None
    return Fraction(array.reshape(()).item())


def source_of(value: ir.Value | None, ranges: Mapping[ir.Value, Range]) -> Source | None:
    """Return what integers a float value stands for; None where it stands for none.

    Args:
        value: any value of the graph. ranges: of integers, where they are narrower than their type.
    """
    moves: list[ir.Node] = []
    for _ in range(_LONGEST):
        node = None if value is None else value.producer()
        if node is None or value is None:
            return None
        if is_standard(node, "MaxPool") or has(node, Trait.PERMUTES) or is_standard(node, "Slice", "Expand", "Tile"):
            if is_read(*node.outputs[1:]):
                return None
            moves.insert(0, node)
            value = node.inputs[0]
            continue
        found = _made(node, value, ranges)
        return None if found is None else replace(found, moves=tuple(moves))
    return None


def _made(node: ir.Node, value: ir.Value, ranges: Mapping[ir.Value, Range]) -> Source | None:
    """Return the integers that an operator makes a float value of, or rounds to."""
    if is_standard(node, "DequantizeLinear"):
        stored, step, zero = node.inputs[0], scalar(node.inputs[1]), scalar(optional(node, 2))
        if stored is None or step is None or step <= 0 or (optional(node, 2) is not None and zero is None):
            return None
        ends = range_of(stored, ranges)
        return None if ends is None else Source(stored, step, int(zero or 0), *ends)
    if is_standard(node, "Cast") and value.dtype in FLOATS:
        whole = node.inputs[0]
        ends = None if whole is None or whole.dtype in FLOATS else range_of(whole, ranges)
        return None if ends is None or whole is None else Source(whole, Fraction(1), 0, *ends)
    if is_standard(node, "Mul", "Div"):
        return _scaled(node, ranges)
    if not is_standard(node, "Round", "Sign", "Where"):
        return None
    low, high = _values(value, 0)
    if low is None or high is None:
        return None
    chosen = [scalar(operand) for operand in node.inputs[1:3]] if is_standard(node, "Where") else []
    if any(end is None or end.denominator != 1 for end in chosen):
        return None
    return Source(value, Fraction(1), 0, int(low), int(high))


def _scaled(node: ir.Node, ranges: Mapping[ir.Value, Range]) -> Source | None:
    """Return the integers of a value that is a multiple of what stands for integers."""
    for index in (0, 1) if node.op_type == "Mul" else (1,):
        factor = scalar(node.inputs[index])
        if factor is None or factor <= 0:
            continue
        found = source_of(node.inputs[1 - index], ranges)
        if found is not None and not found.moves:
            return replace(found, step=found.step * factor if node.op_type == "Mul" else found.step / factor)
    return None


def _values(value: ir.Value | None, depth: int) -> tuple[Fraction | None, Fraction | None]:
    """Return bounds of a float value, None where there is none: clamps and their like tell them."""
    node = None if value is None else value.producer()
    if node is None or depth > _LONGEST:
        return None, None
    if is_standard(node, "Sign"):
        return Fraction(-1), Fraction(1)
    if is_standard(node, "Round"):
        low, high = _values(node.inputs[0], depth + 1)
        return None if low is None else Fraction(round(low)), None if high is None else Fraction(round(high))
    if is_standard(node, "Where"):
        ends = [scalar(operand) for operand in node.inputs[1:3]]
        known = [end for end in ends if end is not None]
        return (min(known), max(known)) if len(known) == 2 else (None, None)
    clamped = clamp_of(node)
    if clamped is None:
        return None, None
    data, cut = clamped[0], Clamp(clamped[1], clamped[2])
    low, high = _values(data, depth + 1)
    return cut.low if low is None else cut.apply(low, 0), cut.high if high is None else cut.apply(high, 0)


def clamp_of(node: ir.Node) -> tuple[ir.Value | None, Fraction | None, Fraction | None] | None:
    """Return the operand of a Relu, Clip, Max or Min with constants, and the ends; None of any other operator."""
    if is_standard(node, "Relu"):
        return node.inputs[0], Fraction(0), None
    if is_standard(node, "Clip"):
        ends = []
        for index in (1, 2):
            bound = optional(node, index)
            found = scalar(bound)
            if bound is not None and found is None:
                return None
            ends.append(found)
        return node.inputs[0], ends[0], ends[1]
    if is_standard(node, "Max", "Min") and len(node.inputs) == 2:
        for index in (0, 1):
            found = scalar(node.inputs[index])
            if found is not None:
                data = node.inputs[1 - index]
                return (data, found, None) if node.op_type == "Max" else (data, None, found)
    return None


def range_of(value: ir.Value, ranges: Mapping[ir.Value, Range]) -> Range | None:
    """Return the range of a value of an integer type; None where it is not known to be small."""
    if value in ranges:
        return ranges[value]
    whole = _TYPES.get(value.dtype) if value.dtype is not None else None
    node = value.producer()
    if node is None or not is_standard(node, "Clip", "QuantizeLinear", "Cast"):
        return whole
    if node.op_type == "QuantizeLinear":
        kind = quantized_type(node)
        return whole or (None if kind is None else _TYPES.get(kind))
    inner = None if node.inputs[0] is None else range_of(node.inputs[0], ranges)
    if node.op_type == "Cast":
        fits = inner is not None and (whole is None or (whole[0] <= inner[0] and inner[1] <= whole[1]))
        return inner if fits else whole
    clamped = clamp_of(node)
    if clamped is None or inner is None:
        return inner or whole
    low = inner[0] if clamped[1] is None else max(inner[0], int(clamped[1]))
    high = inner[1] if clamped[2] is None else min(inner[1], int(clamped[2]))
    return low, high


@dataclass(frozen=True)
class Whole:
    """A weight as integers.

    Args:
        integers: without their zero point. steps: of each output channel, or one.
    """

    integers: Ints
    steps: tuple[Fraction, ...]


def whole_weight(linear: Linear) -> Whole:
    """Return the integers of a layer's weight.

    Raises:
        Stays: it is computed at run time, or no integers.
    """
    node = linear.node
    weight = fixed_weight(linear.value(linear.weight))
    if weight is None:
        raise Stays(f"{describe(node)} has a weight that is computed at run time")
    rank = len(weight.shape)
    axis = linear.output_axis(rank)
    if axis is None or (linear.form is Form.PRODUCT and rank != 2):
        raise Stays(f"{describe(node)} multiplies by stacks of matrices or by a vector")
    if weight.quantized is None:
        return _on_grid(node, np.moveaxis(weight.array(), axis, 0), axis)
    quantizer = weight.quantized
    steps, zero, stored = (constant64(optional(quantizer, place)) for place in (1, 2, 0))
    assert steps is not None
    assert stored is not None
    if quantizer.attributes.get_int("block_size", 0) and steps.size > 1:
        raise Stays(f"{describe(quantizer)} has steps per block of weights, which no integer sum can have")
    at = quantizer.attributes.get_int("axis", 1) % rank
    if steps.size > 1 and at != axis:
        raise Stays(f"{describe(quantizer)} has steps along another axis than output channels")
    spread = [-1 if k == at else 1 for k in range(rank)]
    offset = np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
    offset = offset.reshape(()) if offset.size == 1 else offset.reshape(spread)
    return Whole(stored.astype(np.int64) - offset, tuple(Fraction(float(step)) for step in steps.reshape(-1)))


def _on_grid(node: ir.Node, rows: Floats, axis: int) -> Whole:
    """Return float weights as integers times a step per row, if they are."""
    whole = np.zeros(rows.shape, np.int64)
    steps: list[Fraction] = []
    for index, row in enumerate(rows):
        largest = float(np.abs(row).max(initial=0.0))
        for count in range(1, 128):
            step = largest / count
            if step == 0 or float(np.abs(row / step - np.rint(row / step)).max(initial=0.0)) <= _GRID * count:
                break
        else:
            raise Stays(f"{describe(node)} has weights that are no integers of at most 127 times a step per channel")
        whole[index] = 0 if step == 0 else np.rint(row / step)
        steps.append(Fraction(step))
    return Whole(np.moveaxis(whole, 0, axis), tuple(steps))


def accumulator_range(linear: Linear, whole: Whole, source: Source, *, padded: bool) -> tuple[Ints, Ints]:
    """Return the least and greatest sum of each output channel.

    Raises:
        Stays: it may not fit an int32.
    """
    low, high = source.centred
    if padded:
        low, high = min(low, 0), max(high, 0)
    axis = linear.output_axis(whole.integers.ndim)
    assert axis is not None
    rows = np.moveaxis(whole.integers, axis, 0).reshape(whole.integers.shape[axis], -1)
    least = np.minimum(rows * low, rows * high).sum(axis=1)
    most = np.maximum(rows * low, rows * high).sum(axis=1)
    if max(int(most.max()), -int(least.min())) >= 2**31 - 1:
        raise Stays(f"{describe(linear.node)} has sums that no int32 holds")
    return least, most


def exactly(values: npt.ArrayLike) -> tuple[Fraction, ...]:
    """Return numbers as fractions."""
    return tuple(Fraction(float(number)) for number in np.asarray(values, np.float64).reshape(-1))
