"""Products by a large constant, which is read and computed one piece at a time.

A weight in float64 is twice as large as in the file, and a fold multiplies it: whole, it would be written to memory
and read back several times. A piece stays in the processor's cache. Conv is cut along its output channels (whole groups
together), Gemm and MatMul along the columns of the matrix or along the axis that they sum over. NumPy multiplies: a
check has a few rows of input only, and there its BLAS is several times as fast as torch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.exact import BLOCK, Parts, constant_tensor, parts64
from normdeploy.graph.operators.call import Call
from normdeploy.graph.operators.linear import padded, with_addend
from normdeploy.graph.operators.windows import spatial

Array = npt.NDArray[np.float64]

WEIGHT = 1
"""The operand that is read in pieces."""


def large_weight(node: ir.Node) -> Parts | None:
    """Return a product's weight in pieces; None where it is small, or is to be had as a whole only."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    tensor = constant_tensor(node.inputs[WEIGHT])
    if tensor is None or tensor.size <= BLOCK:
        return None
    parts = parts64(tensor)
    if parts is None or (node.op_type == "Conv" and parts.axis != 0):
        return None
    return parts if node.op_type == "Conv" or len(tensor.shape) == 2 else None


def product_in_pieces(call: Call, x: Tensor, parts: Parts, shape: Sequence[int], addend: Tensor | None) -> Tensor:
    """Evaluate a Conv, Gemm or MatMul.

    Args:
        call: the node.
        x: its first input, float64.
        parts: its weight, from :func:`large_weight`.
        shape: the weight's.
        addend: its third input.
    """
    if call.node.op_type == "Conv":
        return _conv(call, x, parts, tuple(shape), addend)
    transposed = call.node.op_type == "Gemm" and bool(call.attr("transB", 0))
    if call.node.op_type == "Gemm" and call.attr("transA", 0):
        x = x.T
    product = _matmul(x, parts, tuple(shape), transposed=transposed)
    return product if call.node.op_type == "MatMul" else with_addend(call, product, addend)


def _conv(call: Call, x: Tensor, parts: Parts, shape: tuple[int, ...], bias: Tensor | None) -> Tensor:
    groups, kernel = call.attr("group", 1), shape[2:]
    columns, spatial_out = _columns(call, padded(call, x, kernel).numpy(), kernel, groups)
    rows = shape[0] // groups
    result = np.empty((x.shape[0], shape[0], columns.shape[-1]))
    for start, stop, piece in parts.pieces(shape, step=1 if groups == 1 else rows):
        first = start // rows
        count = 1 if groups == 1 else stop // rows - first
        matrix = piece.reshape(count, (stop - start) // count, -1)
        product = matrix @ columns[:, first : first + count]
        result[:, start:stop] = product.reshape(x.shape[0], stop - start, -1)
    y = torch.from_numpy(result.reshape(x.shape[0], shape[0], *spatial_out))
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(kernel))


def _columns(call: Call, x: Array, kernel: tuple[int, ...], groups: int) -> tuple[Array, tuple[int, ...]]:
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


def _matmul(x: Tensor, parts: Parts, shape: tuple[int, ...], *, transposed: bool) -> Tensor:
    rows = x.numpy().reshape(-1, x.shape[-1])
    result = np.zeros((len(rows), shape[0] if transposed else shape[1]))
    for start, stop, piece in parts.pieces(shape):
        matrix = piece.T if transposed else piece
        if (parts.axis == 0) == transposed:
            result[:, start:stop] = rows @ matrix
        else:
            result += rows[:, start:stop] @ matrix
    return torch.from_numpy(result.reshape(*x.shape[:-1], -1))
