"""Linear operators on integers: which integers a Conv, MatMul or Gemm sums, and what the sums are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Ints
from normdeploy.graph.linear_view import Form, Linear, linear_of
from normdeploy.graph.traits import is_standard
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.rules.linear import pads_zeros
from normdeploy.rewrite.integer.integer_source import (
    BYTES,
    Range,
    Source,
    Stays,
    Whole,
    accumulator_range,
    exactly,
    source_of,
    whole_weight,
)
from normdeploy.rewrite.integer.monotone import Map


@dataclass(frozen=True)
class Layer:
    """A linear operator on integers: x = scale acc + shift with acc the sum of products of integers.

    Args:
        linear: the operator. source: the integers that it reads. whole: those of its weight.
        map: from the accumulator to its result.
        low, high: the accumulator's range, per output channel.
        axis: the result's that counts channels.
    """

    linear: Linear
    source: Source
    whole: Whole
    map: Map
    low: Ints
    high: Ints
    axis: int


def layer_of(node: ir.Node, ranges: Mapping[ir.Value, Range]) -> Layer:
    """Describe a Conv, MatMul or Gemm as a layer on integers.

    Raises:
        Stays: it is none.
    """
    linear = linear_of(node)
    if linear is None or not is_standard(node, "Conv", "MatMul", "Gemm"):
        raise Stays(f"{describe(node)} is no layer that there is on integers")
    if linear.turned_data or linear.turned_result:
        raise Stays(f"{describe(node)} reads its data transposed")
    source = source_of(linear.value(linear.data), ranges)
    if source is None:
        raise Stays(f"{describe(node)} reads no integers")
    ends = next((ends for ends in BYTES.values() if ends[0] <= source.low and source.high <= ends[1]), None)
    if ends is None or not ends[0] <= source.zero <= ends[1]:
        raise Stays(f"{describe(node)} reads integers that no byte holds")
    whole = whole_weight(linear)
    data = linear.value(linear.data)
    rank = 0 if data is None or data.shape is None else data.shape.rank()
    rank = whole.integers.ndim if linear.form is Form.CONVOLUTION else rank
    axis = None if not rank else linear.result_axis(rank)
    if axis is None:
        raise Stays(f"{describe(node)} reads data of unknown rank")
    padded = linear.form is Form.CONVOLUTION and pads_zeros(node, whole.integers.shape[2:])
    low, high = accumulator_range(linear, whole, source, padded=padded)
    factor = source.step * Fraction(linear.alpha)
    mapping = Map(tuple(factor * step for step in whole.steps), _bias(linear, len(low)))
    return Layer(linear, source, whole, mapping, low, high, axis)


def _bias(linear: Linear, channels: int) -> tuple[Fraction, ...]:
    value = linear.value(linear.bias)
    if value is None:
        return (Fraction(0),)
    bias = fixed_weight(value)
    if bias is None:
        raise Stays(f"{describe(linear.node)} has a bias that is computed at run time")
    array = np.asarray(bias.array())
    if array.size not in (1, channels) or (array.size > 1 and array.shape[-1] != channels):
        raise Stays(f"{describe(linear.node)} adds a matrix")
    return tuple(Fraction(linear.beta) * number for number in exactly(array))
