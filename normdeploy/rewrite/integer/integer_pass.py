"""The pass: every quantizer that is a function of integers becomes one, every layer on integers is one.

1. Each quantizer is followed back to the accumulator in front of it, and its thresholds are found and proven.
2. The layer is written on integers, the signs of falling channels in its weights, and its quantizer as a comparison, an
   integer multiplier or a search among thresholds. What was written is run in front of and behind each threshold.
3. A layer on integers whose result is read as floats becomes sums, and one map behind them.

A quantizer of what is no integer stays, with the reason in its row of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Floats
from normdeploy.errors import RewriteError
from normdeploy.graph import FLOATS, evaluate_region, module_path
from normdeploy.graph.edit import take_out_unread, take_place
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.affine_node import settle
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.integer.integer_makers import Quantizer, leads_to_quantizer, quantizer_of
from normdeploy.rewrite.integer.integer_source import Given, Range, Stays
from normdeploy.rewrite.integer.layer import Layer, layer_of
from normdeploy.rewrite.integer.multiplier import multiplier_of
from normdeploy.rewrite.integer.quantizer_chain import Found, found_of
from normdeploy.rewrite.integer.thresholds import Thresholds, breakpoints, thresholds_of
from normdeploy.rewrite.integer.write_layer import (
    Writer,
    byte_type,
    write_levels,
    write_source,
    write_sums,
)
from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.rewrite_context import RewritePass

QUANTIZER, LAYER = "quantizer", "integer layer"
"""What the ledger calls them."""

_MOST = 1 << 20
"""Thresholds of one quantizer, over all channels."""


class OnIntegers(RewritePass):
    """Write quantized layers and their quantizers on integers.

    Args:
        context: takes the rows.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit the main graph."""
        graph, ranges = model.graph, dict[ir.Value, Range]()
        modified = False
        for node in list(graph):
            if node.graph is graph:
                modified |= self._quantizer(graph, node, ranges)
        for node in list(graph):
            if node.graph is graph and is_standard(node, "Conv", "MatMul", "Gemm"):
                modified |= self._layer(graph, node, ranges)
        return ir.passes.PassResult(model, modified)

    def _quantizer(self, graph: ir.Graph, node: ir.Node, ranges: dict[ir.Value, Range]) -> bool:
        site = tuple(str(output.name) for output in node.outputs)
        where = module_path(node)
        try:
            quantizer = quantizer_of(node)
            if quantizer is None or leads_to_quantizer(quantizer):
                return False
            into, note = self._rewrite(graph, quantizer, found_of(quantizer, ranges), ranges)
        except Stays as error:
            if not is_standard(node, "Round", "Sign") or not isinstance(error, Given):
                self.context.ledger.add(LedgerRow(where, QUANTIZER, "kept", "", f"{describe(node)}: {error}", site))
            return False
        self.context.ledger.add(LedgerRow(where, QUANTIZER, "fused", into, note, site))
        return True

    def _rewrite(
        self, graph: ir.Graph, quantizer: Quantizer, found: Found, ranges: dict[ir.Value, Range]
    ) -> tuple[str, str]:
        ends = [found.chain.level(int(end), c) for c in range(len(found.low)) for end in (found.low[c], found.high[c])]
        if (max(ends) - min(ends)) * len(found.low) > _MOST:
            raise Stays(f"it has {max(ends) - min(ends)} levels")
        thresholds = thresholds_of(found.chain, found.low, found.high)
        values, step = _values(quantizer, thresholds)
        dtype = quantizer.dtype or byte_type(min(values), max(values))
        writer = Writer(graph, quantizer.nodes[0], quantizer.nodes[0])
        levels, sums, thresholds = self._levels(writer, found, thresholds, values, dtype)
        for move in found.moves:
            levels = writer.moved(move, levels)
        ranges[levels] = (min(values), max(values))
        result = levels
        if quantizer.dtype is None:
            result = _as_floats(writer, levels, quantizer.result, step)
            if result is not levels:
                ranges[levels] = (min(values), max(values))
        for node in found.passed:
            settle(self.context.ledger, node, "folded", module_path(quantizer.nodes[0]), "in its thresholds")
        _take_place(result, quantizer.result)
        producer = found.producer
        into = describe(producer.linear.node) if isinstance(producer, Layer) else f"integers '{producer.name}'"
        note = f"{sums}, equal on every accumulator from {int(found.low.min())} to {int(found.high.max())}"
        return into, note

    def _levels(
        self, writer: Writer, found: Found, thresholds: Thresholds, values: Range, dtype: ir.DataType
    ) -> tuple[ir.Value, str, Thresholds]:
        producer = found.producer
        if isinstance(producer, Layer):
            data = write_source(writer, producer.source)
            falling = thresholds.direction < 0
            sums = write_sums(writer, producer, data, falling)
            thresholds = thresholds.turned(falling)
        else:
            sums = producer
            if producer.dtype == dtype and _is_identity(thresholds):
                return producer, "the same integers", thresholds
        multiplier = multiplier_of(thresholds) if thresholds.count > 1 else None
        start = len(writer.nodes)
        levels = write_levels(writer, sums, thresholds, multiplier, found.axis, values, dtype)
        _check(writer.nodes[start:], sums, levels, thresholds, found.axis, values, writer.stem)
        count = thresholds.count
        form = f"{count} thresholds" if count > 1 else "a threshold"
        return levels, form if multiplier is None else f"a step of integers ({form})", thresholds

    def _layer(self, graph: ir.Graph, node: ir.Node, ranges: dict[ir.Value, Range]) -> bool:
        try:
            layer = layer_of(node, ranges)
            writer = Writer(graph, node, node)
            data = write_source(writer, layer.source)
            sums = write_sums(writer, layer, data, np.zeros(len(layer.low), bool))
        except Stays:
            return False
        result = node.outputs[0]
        dtype = result.dtype if result.dtype in FLOATS else ir.DataType.FLOAT
        assert dtype is not None
        rank = 1 if sums.shape is None else sums.shape.rank()
        columns = (-1,) + (1,) * (rank - 1 - layer.axis % max(rank, 1))
        value = writer.cast(sums, dtype)
        for op_type, numbers, name in (("Mul", layer.map.scale, "steps"), ("Add", layer.map.shift, "bias")):
            array: Floats = np.array([float(number) for number in numbers]).reshape(columns)
            if (array != (1.0 if op_type == "Mul" else 0.0)).any():
                value = writer.make(op_type, [value, writer.real(array, dtype, name)], dtype, result.shape)
        _take_place(value, result)
        kind = linear_of(node)
        assert kind is not None
        row = LedgerRow(module_path(node), LAYER, "fused", "sums of integers", "", (str(value.name),))
        self.context.ledger.add(row)
        return True


def sums_integers(model: ir.Model) -> bool:
    """Tell whether a file has layers on integers."""
    return any(is_standard(node, "ConvInteger", "MatMulInteger") for node in model.graph)


def _values(quantizer: Quantizer, thresholds: Thresholds) -> tuple[Range, float]:
    """Return the integers of the lowest and the highest level, and what a unit of them is worth."""
    if quantizer.values is None:
        return (thresholds.base, thresholds.top), 1.0
    no, yes = quantizer.values
    unit = abs(yes) if no in (-yes, 0) and yes else abs(no) if yes == 0 and no else None
    if unit is None or (no.denominator == 1 and yes.denominator == 1):
        unit = type(no)(1)
    low, high = no / unit, yes / unit
    if low.denominator != 1 or high.denominator != 1:
        raise Stays(f"its two values {float(no):g} and {float(yes):g} are no integers times a step")
    return (int(low), int(high)), float(unit)


def _as_floats(writer: Writer, levels: ir.Value, like: ir.Value, step: float) -> ir.Value:
    dtype = like.dtype if like.dtype in FLOATS else ir.DataType.FLOAT
    assert dtype is not None
    value = writer.cast(levels, dtype)
    if step == 1.0:
        return value
    return writer.make("Mul", [value, writer.real(np.array(step), dtype, "step")], dtype, levels.shape)


def _is_identity(found: Thresholds) -> bool:
    expected = np.arange(found.base + 1, found.top + 1)
    low, high = int(found.low.min()), int(found.high.max())
    rising = (found.direction > 0).all() and (found.rises == expected).all()
    return bool(rising) and (low, high) == (found.base, found.top)


def _check(
    nodes: Sequence[ir.Node], sums: ir.Value, levels: ir.Value, found: Thresholds, axis: int, values: Range, site: str
) -> None:
    """Run what was written where the level rises, one accumulator before, and at the ends of the range.

    Raises:
        RewriteError: it is not the function (a bug of ours).
    """
    points = breakpoints(found)
    count = max(len(at) for at in points)
    table = np.stack([np.pad(at, (0, count - len(at)), mode="edge") for at in points], axis=1)
    expected = found.levels(table)
    if found.count == 1:
        expected = np.where(expected > found.base, values[1], values[0])
    rank = 1 if sums.shape is None else sums.shape.rank()
    axis %= max(rank, 1)
    if rank < 2:
        return
    channels = table.shape[1]
    shape = [1] * rank
    shape[axis], other = channels, 0 if axis != 0 else 1
    fed = np.moveaxis(table.reshape(count, channels, *[1] * (rank - 2)), (0, 1), (other, axis))
    kind: Any = np.int32 if sums.dtype is None else sums.dtype.numpy()
    with torch.no_grad():
        (got,) = evaluate_region(nodes, {sums: torch.from_numpy(np.ascontiguousarray(fed).astype(kind))}, [levels])
    found_levels = np.moveaxis(got.numpy().astype(np.int64), (other, axis), (0, 1)).reshape(count, channels)
    if not np.array_equal(found_levels, expected):
        at = tuple(int(index) for index in np.argwhere(found_levels != expected)[0])
        text = f"accumulator {table[at]} of channel {at[1]} becomes {found_levels[at]}; expected {expected[at]}"
        raise RewriteError("thresholds", site, text)


def _take_place(new: ir.Value, old: ir.Value) -> None:
    """Let readers of a value read another one, and remove what only computed the old one."""
    take_place(new, old)
    take_out_unread([old])
