"""Products by a large constant, which is read and computed one piece at a time.

A weight in float64 is twice as large as in the file, and a fold multiplies it: whole, it would be written to memory
and read back several times. A piece stays in the processor's cache. Conv is cut along its output channels (whole groups
together), Gemm and MatMul along the columns of the matrix or along the axis that they sum over. NumPy multiplies: a
check has a few rows of input only, and there its BLAS is several times as fast as torch's. What a fold multiplies all
numbers of an output channel by, (W d) x = d (W x), is multiplied with the result instead, and what it multiplies those
of an input channel by, (W e) x = W (e x), with the input: both are far smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.graph.constant_parts import BLOCK, Parts, read_together
from normdeploy.graph.exact import constant_tensor, parts64
from normdeploy.graph.operators.call import Call
from normdeploy.graph.operators.linear_operators import padded, with_addend
from normdeploy.graph.operators.windows import spatial

WEIGHT = 1
"""The operand that is read in pieces."""


def large_weight(node: ir.Node) -> Parts | None:
    """Return a product's weight in pieces; None where it is small, or is to be had as a whole only."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain or len(node.inputs) < 2:
        return None
    tensor = constant_tensor(node.inputs[WEIGHT])
    if tensor is None or tensor.size <= BLOCK:
        return None
    parts = parts64(tensor)
    if parts is None or (node.op_type == "Conv" and parts.axis != 0):
        return None
    return parts if node.op_type == "Conv" or len(tensor.shape) == 2 else None


def alike(first: ir.Node, second: ir.Node) -> bool:
    """Tell whether two products have one input, and weights of which the second's is made of the first's."""
    if first.op_type != second.op_type or first.inputs[0] is not second.inputs[0]:
        return False
    weights = large_weight(first), large_weight(second)
    if weights[0] is None or weights[1] is None or weights[1].steps_from(weights[0]) is None:
        return False
    return _attributes(first) == _attributes(second)


_SAME = ("pads", "auto_pad", "strides", "dilations", "group", "transA", "transB")


def _attributes(node: ir.Node) -> list[Any]:
    return [node.attributes[name].value if name in node.attributes else None for name in _SAME]


@dataclass
class Ahead:
    """What a large weight is multiplied by as well while it is read, for a product that will be asked for next.

    Reading a weight is most of the work. A check evaluates a product as it is and as it became, which often differ by
    what they read and by factors per input and per output channel alone.

    A convolution multiplies what each of its positions reads by the same numbers and adds the same bias, so that one
    mean of its positions tells two of them apart as well as all do, whose difference at one would have to vanish in it.

    Args:
        of: what is read next, times the factors per input channel, by the value that will stand for it.
        rng: draws the weights of that mean, which are of one size and not equal; None to return all positions.
        found: what came of it: of which weight, by which attributes, of what.
    """

    of: Mapping[ir.Value, Tensor]
    rng: np.random.Generator | None = None
    found: list[tuple[Parts, list[Any], Floats, Floats]] = field(default_factory=list)
    _means: dict[int, Floats] = field(default_factory=dict)

    def mean_of(self, columns: Floats) -> Floats:
        """Return one mean of the columns on the last axis, the same of all that are as many; all without ``rng``."""
        count = columns.shape[-1]
        if self.rng is None or count <= 1:
            return columns
        if count not in self._means:
            weights = np.asarray(self.rng.uniform(1.0, 2.0, count))
            self._means[count] = weights / weights.sum()
        return np.asarray((columns @ self._means[count])[..., None])

    def held(self, node: ir.Node, weights: Sequence[Parts], x: Floats) -> Floats | None:
        """Return the product of a weight and ``x`` where that of the same weight and the same numbers was taken."""
        for parts, attributes, other, product in self.found if len(weights) == 1 else ():
            same = weights[0].steps_from(parts) == () and attributes == _attributes(node)
            if same and np.array_equal(other, x):
                return product
        return None

    def take(self, node: ir.Node, weight: Parts, x: Floats, product: Floats) -> None:
        """Note a product."""
        self.found.append((weight, _attributes(node), x, product))

    def next_of(self, node: ir.Node) -> Floats | None:
        """Return what a product will read next; None where nobody knows."""
        value = node.inputs[0]
        found = None if value is None else self.of.get(value)
        return None if found is None else found.numpy()


def products_in_pieces(
    calls: Sequence[Call], x: Tensor, addends: Sequence[Tensor | None], ahead: Ahead | None = None
) -> list[Tensor]:
    """Evaluate a Conv, Gemm or MatMul, or several that are :func:`alike`, reading their weights once.

    Args:
        calls: the nodes, which all have a :func:`large_weight`.
        x: their first input, float64.
        addends: their third inputs.
        ahead: what else is multiplied by the weight meanwhile.
    """
    head = calls[0]
    tensor = constant_tensor(head.node.inputs[WEIGHT])
    weights = [parts for parts in (large_weight(call.node) for call in calls) if parts is not None]
    if tensor is None or len(weights) != len(calls):
        raise ValueError("the weight is small or no constant; expected products with a large weight")
    shape, ahead = tuple(tensor.shape.numpy()), Ahead({}) if ahead is None else ahead
    if head.node.op_type == "Conv":
        ones = (1,) * (len(shape) - 2)
        products = _conv(head, x, weights, shape, ahead)
        return [y if b is None else y + b.reshape(-1, *ones) for y, b in zip(products, addends, strict=True)]
    gemm = head.node.op_type == "Gemm"
    products = _matmul(head, x, weights, shape, ahead)
    if not gemm:
        return products
    return [with_addend(call, product, c) for call, product, c in zip(calls, products, addends, strict=True)]


def _conv(call: Call, x: Tensor, weights: Sequence[Parts], shape: tuple[int, ...], ahead: Ahead) -> list[Tensor]:
    ones = (1,) * (len(shape) - 2)
    alone = len(weights) == 1 and call.attr("group", 1) == 1  # its input channels are axis 1 of the weight
    plain, factors = zip(*(parts.unscaled([0, 1] if alone else [0]) for parts in weights), strict=True)
    read = x.numpy() * factors[0][1].reshape(-1, *ones) if 1 in factors[0] else x.numpy()
    held = ahead.held(call.node, plain, read)
    products = _convolved(call, read, plain, shape, ahead) if held is None else [held]
    return [
        torch.from_numpy(product * factor[0].reshape(-1, *ones) if 0 in factor else product)
        for product, factor in zip(products, factors, strict=True)
    ]


def _convolved(call: Call, x: Floats, weights: Sequence[Parts], shape: tuple[int, ...], ahead: Ahead) -> list[Floats]:
    groups, kernel = call.attr("group", 1), shape[2:]
    later = ahead.next_of(call.node)
    samples, read = len(x), x if later is None else np.concatenate([x, later])
    seen, size = _columns(call, padded(call, torch.from_numpy(read), kernel).numpy(), kernel, groups, ahead)
    columns = seen if later is None else np.concatenate([seen[:samples], seen[samples:]], axis=-1)
    rows = shape[0] // groups
    results = [np.empty((samples, shape[0], columns.shape[-1])) for _ in weights]
    for start, stop, which, piece in read_together(weights, shape, step=1 if groups == 1 else rows):
        first = start // rows
        count = 1 if groups == 1 else stop // rows - first
        matrix = piece.reshape(count, (stop - start) // count, -1)
        product = matrix @ columns[:, first : first + count]
        results[which][:, start:stop] = product.reshape(samples, stop - start, -1)
    own = seen.shape[-1]
    if later is not None:
        ahead.take(call.node, weights[0], later, results[0][..., own:].reshape(samples, shape[0], *size))
    return [result[..., :own].reshape(samples, shape[0], *size) for result in results]


def _columns(
    call: Call, x: Floats, kernel: tuple[int, ...], groups: int, ahead: Ahead
) -> tuple[Floats, tuple[int, ...]]:
    """Return what each output position reads, [N, groups, I/g * taps, positions], and the output's spatial size."""
    rank = len(kernel)
    strides, dilations = spatial(call, "strides", rank, 1), spatial(call, "dilations", rank, 1)
    extents = [(size - 1) * apart + 1 for size, apart in zip(kernel, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, extents, axis=tuple(range(2, 2 + rank)))
    outputs = tuple(slice(None, None, step) for step in strides)
    taps = tuple(slice(None, None, apart) for apart in dilations)
    seen = windows[(slice(None), slice(None), *outputs, *taps)]
    spatial_out = seen.shape[2 : 2 + rank]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    columns = ahead.mean_of(seen.transpose(order).reshape(x.shape[0], groups, -1, math.prod(spatial_out)))
    return columns, spatial_out if columns.shape[-1] == math.prod(spatial_out) else (1,) * rank


def _matmul(call: Call, x: Tensor, weights: Sequence[Parts], shape: tuple[int, ...], ahead: Ahead) -> list[Tensor]:
    gemm = call.node.op_type == "Gemm"
    summed, written = (1, 0) if gemm and call.attr("transB", 0) else (0, 1)
    plain, factors = zip(*(parts.unscaled([0, 1]) for parts in weights), strict=True)
    one = x.T if gemm and call.attr("transA", 0) else x
    rows = one.numpy().reshape(-1, one.shape[-1])
    given = [rows * factor[summed] if summed in factor else rows for factor in factors]
    held = ahead.held(call.node, plain, given[0])
    later = None if held is not None or one is not x else ahead.next_of(call.node)
    own = len(rows)
    if later is not None:
        later = later.reshape(-1, rows.shape[-1])
        given[0] = np.concatenate([given[0], later])
    products = [held] if held is not None else _multiplied(given, plain, shape, summed)
    if later is not None:
        ahead.take(call.node, plain[0], later, products[0][own:])
    results = [
        product[:own] * factor[written] if written in factor else product[:own]
        for product, factor in zip(products, factors, strict=True)
    ]
    return [torch.from_numpy(result.reshape(*one.shape[:-1], -1)) for result in results]


def _multiplied(rows: Sequence[Floats], weights: Sequence[Parts], shape: tuple[int, ...], summed: int) -> list[Floats]:
    written = 1 - summed
    results = [np.zeros((len(read), shape[written])) for read in rows]
    for start, stop, which, piece in read_together(weights, shape):
        matrix, read, result = piece.T if summed else piece, rows[which], results[which]
        if weights[0].axis == written:
            result[:, start:stop] = read @ matrix
        else:
            result += read[:, start:stop] @ matrix
    return results
