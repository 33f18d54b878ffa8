"""From a quantizer back to the accumulator that it is a function of.

Followed are channel-wise affine maps, clamps, leaky slopes, other quantizers, operators that move elements, and MaxPool
(which an increasing function may be drawn in front of), to a layer on integers or to integers themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Ints
from normdeploy.graph import FLOATS, constant64
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.affine_operators import Match, match
from normdeploy.rewrite.affine.operator_names import describe, readers
from normdeploy.rewrite.gauge.rules.linear import pads_zeros
from normdeploy.rewrite.integer.integer_makers import Quantizer, quantizer_of
from normdeploy.rewrite.integer.integer_source import (
    Given,
    Range,
    Source,
    Stays,
    Whole,
    accumulator_range,
    clamp_of,
    exactly,
    range_of,
)
from normdeploy.rewrite.integer.layer import Layer, layer_of
from normdeploy.rewrite.integer.monotone import Chain, Clamp, Function, Leaky, Level, Map


@dataclass(frozen=True)
class Found:
    """A quantizer as a function of integers.

    Args:
        chain: the function. producer: the layer, or the integers themselves.
        low, high: the range of what the function is of, per channel.
        axis: that counts channels.
        moves: operators in front of the quantizer that come behind it, the first one first.
        passed: affine maps that are part of the chain.
    """

    chain: Chain
    producer: Layer | ir.Value
    low: Ints
    high: Ints
    axis: int
    moves: tuple[ir.Node, ...]
    passed: tuple[ir.Node, ...]


@dataclass
class _Walk:
    """What was passed on the way back from a quantizer, the last operator first."""

    quantizer: Quantizer
    ranges: Mapping[ir.Value, Range]
    functions: list[tuple[Function, frozenset[int], int]] = field(default_factory=list)
    moves: list[ir.Node] = field(default_factory=list)
    passed: list[ir.Node] = field(default_factory=list)
    falls: bool = False

    def map(self, mapping: AffineMap) -> None:
        self.falls |= bool((mapping.scale < 0).any())
        made = Map(exactly(mapping.scale), exactly(mapping.shift))
        self.functions.append((made, mapping.axes, len(self.moves)))

    def function(self, function: Function) -> None:
        self.functions.append((function, frozenset(), len(self.moves)))

    def found(self, producer: Layer | ir.Value, axis: int, low: Ints, high: Ints) -> Found:
        """Return the function, if every part of it varies along the channels alone."""
        for _, axes, count in self.functions:
            between = self.moves[count:]
            if axes and (axes != {axis} or any(not is_standard(move, "MaxPool", "Identity") for move in between)):
                raise Stays("a map in front of it varies along another axis than the channels")
        functions = [function for function, _, _ in reversed(self.functions)]
        chain = Chain(functions, self.quantizer.ending)
        return Found(chain, producer, low, high, axis, tuple(reversed(self.moves)), tuple(self.passed))


def found_of(quantizer: Quantizer, ranges: Mapping[ir.Value, Range]) -> Found:
    """Return the function of integers that a quantizer is.

    Args:
        quantizer: any of the graph. ranges: of integers, where they are narrower than their type.

    Raises:
        Stays: it is none.
    """
    walk = _Walk(quantizer, ranges)
    return _follow(walk, quantizer.data, quantizer.nodes[0])


def _follow(walk: _Walk, value: ir.Value, reader: ir.Node) -> Found:
    while True:
        node = value.producer()
        if node is None:
            raise Given("it reads what the graph is given")
        if is_standard(node, "DequantizeLinear") or (is_standard(node, "Cast") and value.dtype in FLOATS):
            return _from_integers(walk, node)
        if len(value.uses()) > 1 or value.is_graph_output():
            others = [describe(other) for other in readers(value) if other is not reader]
            raise Stays(f"{describe(node)} in front of it is read by {', '.join(others) or 'the caller'} too")
        if linear_of(node) is not None:
            layer = layer_of(node, walk.ranges)
            walk.function(layer.map)
            return walk.found(layer, layer.axis, layer.low, layer.high)
        reader, value = node, _through(walk, node)


def _through(walk: _Walk, node: ir.Node) -> ir.Value:
    """Note what an operator does, and return what it reads."""
    mapping, data = _affine(node)
    if mapping is not None and data is not None:
        if is_affine(node):
            walk.passed.append(node)
        walk.map(mapping)
        return data
    clamped = clamp_of(node)
    if clamped is not None and clamped[0] is not None:
        walk.function(Clamp(clamped[1], clamped[2]))
        return clamped[0]
    if is_standard(node, "LeakyRelu"):
        slope = Fraction(node.attributes.get_float("alpha", 0.01))
        if slope < 0:
            raise Stays(f"{describe(node)} in front of it has a negative slope")
        walk.function(Leaky((slope,)) if slope else Clamp(Fraction(0)))
    elif is_standard(node, "Round", "Sign"):
        inner = quantizer_of(node)
        assert inner is not None
        walk.function(Level(inner.ending))
    elif is_standard(node, "MaxPool"):
        if walk.falls:
            raise Stays(f"{describe(node)} in front of it is followed by a negative scale: the least is then wanted")
        walk.moves.append(node)
    elif has(node, Trait.PERMUTES):
        walk.moves.append(node)
    else:
        raise Stays(f"{describe(node)} in front of it is no map, clamp or pool that is followed to a layer on integers")
    source = node.inputs[0]
    assert source is not None
    return source


def _affine(node: ir.Node) -> tuple[AffineMap | None, ir.Value | None]:
    if is_affine(node):
        return affine_map(node), node.inputs[0]
    found = match(node)
    return (found.mapping, found.x) if isinstance(found, Match) else (None, None)


def _from_integers(walk: _Walk, node: ir.Node) -> Found:
    """Follow a quantizer that only this chain reads, or take its integers for the accumulator."""
    whole = node.inputs[0]
    assert whole is not None
    mapping = _restores(node)
    inner = _inner(whole) if len(node.outputs[0].uses()) == 1 else None
    if inner is not None and not mapping.axes:
        further = _Walk(
            walk.quantizer, walk.ranges, list(walk.functions), list(walk.moves), list(walk.passed), walk.falls
        )
        further.map(mapping)
        further.function(Level(inner.ending))
        try:
            return _follow(further, inner.data, inner.nodes[0])
        except Stays:
            pass  # its integers serve as well
    walk.map(mapping)
    ends = _sums(whole, walk.ranges) if whole.dtype == ir.DataType.INT32 else None
    if ends is None:
        known = range_of(whole, walk.ranges)
        if known is None:
            raise Stays(f"{describe(node)} in front of it reads integers of unknown range")
        ends = np.array([known[0]]), np.array([known[1]])
    axes = frozenset().union(*(axes for _, axes, _ in walk.functions))
    size = max(
        [len(part) for function, _, _ in walk.functions if isinstance(function, Map)
         for part in (function.scale, function.shift)] + [len(ends[0])]
    )  # fmt: skip
    axis = next(iter(axes), 1)
    low, high = (np.broadcast_to(end, (size,)).astype(np.int64) for end in ends)
    return walk.found(whole, axis, low, high)


def _inner(whole: ir.Value) -> Quantizer | None:
    """Return the quantizer that makes integers for one reader, with one step for all."""
    first = whole.producer()
    if first is not None and is_standard(first, "Clip") and first.inputs[0] is not None:
        first = first.inputs[0].producer()
    found = None if first is None or not is_standard(first, "QuantizeLinear") else quantizer_of(first)
    if found is None or found.result is not whole or len(whole.uses()) > 1 or whole.is_graph_output():
        return None
    return found


def _restores(node: ir.Node) -> AffineMap:
    """Return what integers stand for behind a DequantizeLinear or a Cast."""
    value = node.outputs[0]
    rank = 0 if value.shape is None else value.shape.rank()
    if is_standard(node, "Cast"):
        return AffineMap.of(1.0, 0.0, rank)
    step, zero = constant64(optional(node, 1)), constant64(optional(node, 2))
    if step is None or (zero is None and optional(node, 2) is not None):
        raise Stays(f"{describe(node)} in front of it has a step that is computed at run time")
    if step.size > 1 and node.attributes.get_int("block_size", 0) != 0:
        raise Stays(f"{describe(node)} in front of it has steps per block")
    axis = node.attributes.get_int("axis", 1) % max(rank, 1)
    spread = [-1 if at == axis else 1 for at in range(rank)]
    steps = np.asarray(step, np.float64).reshape(spread if step.size > 1 else [1] * rank)
    offset = np.zeros((), np.float64) if zero is None else np.asarray(zero, np.float64)
    offset = offset.reshape(spread if offset.size > 1 else [1] * rank)
    shift = -offset * steps
    return AffineMap(np.broadcast_to(steps, shift.shape).copy(), shift)


def _sums(whole: ir.Value, ranges: Mapping[ir.Value, Range]) -> tuple[Ints, Ints] | None:
    """Return the range of sums that the graph itself has on integers, per channel."""
    node = whole.producer()
    if node is None or not is_standard(node, "ConvInteger", "MatMulInteger"):
        return None
    linear = linear_of(node)
    data = None if node.inputs[0] is None else range_of(node.inputs[0], ranges)
    weight, offsets = constant64(node.inputs[1]), [constant64(optional(node, place)) for place in (2, 3)]
    known = [offset is not None or optional(node, place) is None for offset, place in zip(offsets, (2, 3), strict=True)]
    if linear is None or weight is None or data is None or not all(known):
        return None
    zeros = [np.zeros((), np.int64) if offset is None else offset.astype(np.int64) for offset in offsets]
    if zeros[0].size > 1 or zeros[1].size > 1:
        return None
    source = Source(whole, Fraction(1), int(zeros[0].reshape(())), *data)
    integers = Whole(weight.astype(np.int64) - zeros[1].reshape(()), (Fraction(1),))
    padded = linear.form is Form.CONVOLUTION and pads_zeros(node, weight.shape[2:])
    return accumulator_range(linear, integers, source, padded=padded)
