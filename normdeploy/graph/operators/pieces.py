"""Products by a large constant, which is read and computed one piece at a time.

A weight in float64 is twice as large as in the file, and a fold multiplies it: whole, it would be written to memory
and read back several times. A piece stays in the processor's cache. Conv is cut along its output channels (whole groups
together), Gemm and MatMul along the columns of the matrix or along the axis that they sum over. NumPy multiplies: a
check has a few rows of input only, and there its BLAS is several times as fast as torch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.graph.exact import BLOCK, Parts, constant_tensor, parts64, read_together
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
    return all(_attribute(first, name) == _attribute(second, name) for name in _SAME)


_SAME = ("pads", "auto_pad", "strides", "dilations", "group", "transA", "transB")


def _attribute(node: ir.Node, name: str) -> Any:
    return node.attributes[name].value if name in node.attributes else None


def products_in_pieces(calls: Sequence[Call], x: Tensor, addends: Sequence[Tensor | None]) -> list[Tensor]:
    """Evaluate a Conv, Gemm or MatMul, or several that are :func:`alike`, reading their weights once.

    Args:
        calls: the nodes, which all have a :func:`large_weight`.
        x: their first input, float64.
        addends: their third inputs.
    """
    head = calls[0]
    tensor = constant_tensor(head.node.inputs[WEIGHT])
    weights = [parts for parts in (large_weight(call.node) for call in calls) if parts is not None]
    if tensor is None or len(weights) != len(calls):
        raise ValueError("the weight is small or no constant; expected products with a large weight")
    shape = tuple(tensor.shape.numpy())
    if head.node.op_type == "Conv":
        return _conv(head, x, weights, shape, addends)
    gemm = head.node.op_type == "Gemm"
    transposed = gemm and bool(head.attr("transB", 0))
    products = _matmul(x.T if gemm and head.attr("transA", 0) else x, weights, shape, transposed=transposed)
    if not gemm:
        return products
    return [with_addend(call, product, c) for call, product, c in zip(calls, products, addends, strict=True)]


def _conv(
    call: Call, x: Tensor, weights: Sequence[Parts], shape: tuple[int, ...], biases: Sequence[Tensor | None]
) -> list[Tensor]:
    groups, kernel = call.attr("group", 1), shape[2:]
    columns, spatial_out = _columns(call, padded(call, x, kernel).numpy(), kernel, groups)
    rows = shape[0] // groups
    results = [np.empty((x.shape[0], shape[0], columns.shape[-1])) for _ in weights]
    for start, stop, which, piece in read_together(weights, shape, step=1 if groups == 1 else rows):
        first = start // rows
        count = 1 if groups == 1 else stop // rows - first
        matrix = piece.reshape(count, (stop - start) // count, -1)
        product = matrix @ columns[:, first : first + count]
        results[which][:, start:stop] = product.reshape(x.shape[0], stop - start, -1)
    values = [torch.from_numpy(result.reshape(x.shape[0], shape[0], *spatial_out)) for result in results]
    ones = (1,) * len(kernel)
    return [y if b is None else y + b.reshape(-1, *ones) for y, b in zip(values, biases, strict=True)]


def _columns(call: Call, x: Floats, kernel: tuple[int, ...], groups: int) -> tuple[Floats, tuple[int, ...]]:
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
    return seen.transpose(order).reshape(x.shape[0], groups, -1, math.prod(spatial_out)), spatial_out


def _matmul(x: Tensor, weights: Sequence[Parts], shape: tuple[int, ...], *, transposed: bool) -> list[Tensor]:
    rows = x.numpy().reshape(-1, x.shape[-1])
    results = [np.zeros((len(rows), shape[0] if transposed else shape[1])) for _ in weights]
    for start, stop, which, piece in read_together(weights, shape):
        matrix, result = piece.T if transposed else piece, results[which]
        if (weights[0].axis == 0) == transposed:
            result[:, start:stop] = rows @ matrix
        else:
            result += rows[:, start:stop] @ matrix
    return [torch.from_numpy(result.reshape(*x.shape[:-1], -1)) for result in results]
