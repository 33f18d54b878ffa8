"""Operators that move, cut, join and describe tensors, in torch."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, axis_of, counted, need, optional
from normdeploy.graph.operators.elementwise_operators import torch_dtype
from normdeploy.graph.operators.evaluation_limits import require_elements


def _reshape(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    shape = call.ints("shape", inputs, 1)
    if shape is None:
        raise ValueError("Reshape without a shape")
    if not call.attr("allowzero", 0):
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return x.reshape(shape)


def _flatten(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    axis = call.attr("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _transpose(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    return x.permute(list(call.attr("perm", tuple(reversed(range(x.dim()))))))


def _squeeze(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    axes = call.ints("axes", inputs, 1)
    return x.squeeze() if axes is None else x.squeeze([axis_of(axis, x.dim()) for axis in axes])


def _unsqueeze(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    axes = call.ints("axes", inputs, 1) or []
    rank = x.dim() + len(axes)
    for axis in sorted(axis_of(axis, rank) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    shape = [int(size) for size in need(inputs, 1).tolist()]
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(shape)))


def _concat(call: Call, inputs: Inputs) -> Tensor:
    return torch.cat([item for item in inputs if item is not None], dim=call.attr("axis", 1))


def _split(call: Call, inputs: Inputs) -> list[Tensor]:
    x = need(inputs, 0)
    axis = call.attr("axis", 0)
    sizes = call.ints("split", inputs, 1)
    if sizes is None:
        parts = call.attr("num_outputs", len(call.node.outputs))
        chunk = -(-x.shape[axis] // parts)
        sizes = [min(chunk, x.shape[axis] - start * chunk) for start in range(parts)]
    return list(torch.split(x, sizes, dim=axis))


def _slice(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    starts, ends = call.ints("starts", inputs, 1) or [], call.ints("ends", inputs, 2) or []
    axes = call.ints("axes", inputs, 3) or list(range(len(starts)))
    steps = call.ints("steps", inputs, 4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:  # ONNX begins at an element, where Python has a start in front of the first take nothing
            start = max(start, -x.shape[axis])
        indices = range(x.shape[axis])[start:end:step]
        if step == 1:
            x = x.narrow(axis, indices.start, len(indices)) if len(indices) else x.narrow(axis, 0, 0)
        else:
            x = x.index_select(axis, torch.tensor(list(indices), dtype=torch.int64, device=x.device))
    return x


def _gather(call: Call, inputs: Inputs) -> Tensor:
    x, indices = need(inputs, 0), need(inputs, 1).to(torch.int64)
    axis = axis_of(call.attr("axis", 0), x.dim())
    indices = counted(call, indices, x.shape[axis])
    taken = x.index_select(axis, indices.reshape(-1))
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_elements(call: Call, inputs: Inputs) -> Tensor:
    x, indices = need(inputs, 0), need(inputs, 1).to(torch.int64)
    axis = axis_of(call.attr("axis", 0), x.dim())
    return torch.gather(x, axis, torch.where(indices < 0, indices + x.shape[axis], indices))


def _gather_nd(call: Call, inputs: Inputs) -> Tensor:
    x, at = need(inputs, 0), need(inputs, 1).to(torch.int64)
    batch, depth = call.attr("batch_dims", 0), at.shape[-1]
    sizes = torch.tensor(x.shape[batch : batch + depth], dtype=torch.int64)
    if len(sizes) != depth or at.shape[:batch] != x.shape[:batch]:
        raise IndexError(f"GatherND indices of shape {tuple(at.shape)} in {tuple(x.shape)} behind {batch} axes")
    places = counted(call, at, sizes).reshape(math.prod(x.shape[:batch]), -1, depth)
    rows = torch.arange(len(places)).unsqueeze(1).expand(places.shape[:2])
    taken = x.reshape(len(places), *x.shape[batch:])[(rows, *places.unbind(-1))]
    return taken.reshape(*at.shape[:-1], *x.shape[batch + depth :])


def _shape(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    return torch.tensor(list(x.shape)[call.attr("start", 0) : call.attr("end", None)], dtype=torch.int64)


def _constant_of_shape(call: Call, inputs: Inputs) -> Tensor:
    shape = [int(size) for size in need(inputs, 0).tolist()]
    require_elements(f"operator ConstantOfShape ({call.node.name})", shape)
    value = call.attr("value")
    if value is None:
        return torch.zeros(shape, dtype=call.dtype)
    return torch.full(shape, value.numpy().item(), dtype=torch_dtype(value.dtype, call.dtype))


def _one_hot(call: Call, inputs: Inputs) -> Tensor:
    places, depth, values = need(inputs, 0), int(need(inputs, 1)), need(inputs, 2)
    axis = axis_of(call.attr("axis", -1), places.dim() + 1)
    places = torch.where(places < 0, places + depth, places).unsqueeze(axis)  # out of range it names no class
    classes = torch.arange(depth).reshape([-1 if at == axis else 1 for at in range(places.dim())])
    return torch.where(places == classes, values[1], values[0])


def _range(call: Call, inputs: Inputs) -> Tensor:
    start, limit, delta = (need(inputs, i) for i in range(3))
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    require_elements(f"operator Range ({call.node.name})", [count])
    return start + delta * torch.arange(count, dtype=start.dtype)


def _pad(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    pads = call.ints("pads", inputs, 1) or []
    given = optional(inputs, 3)
    axes = list(range(x.dim())) if given is None else [axis_of(int(axis), x.dim()) for axis in given.tolist()]
    constant = optional(inputs, 2) if call.opset >= 11 else None
    value = float(call.attr("value", 0.0)) if constant is None else constant.item()
    mode = call.attr("mode", "constant")
    begin, end = pads[: len(axes)], pads[len(axes) :]
    if mode != "constant":
        return _pad_by_index(x, axes, begin, end, mode)
    sizes = dict(enumerate(x.shape)) | {a: x.shape[a] + b + e for a, b, e in zip(axes, begin, end, strict=True)}
    require_elements(f"operator Pad ({call.node.name})", list(sizes.values()))
    flat = [0] * (2 * x.dim())
    for axis, low, high in zip(axes, begin, end, strict=True):
        flat[2 * (x.dim() - 1 - axis)], flat[2 * (x.dim() - 1 - axis) + 1] = low, high
    return F.pad(x, flat, value=value)


def _pad_by_index(x: Tensor, axes: list[int], begin: list[int], end: list[int], mode: str) -> Tensor:
    for axis, low, high in zip(axes, begin, end, strict=True):
        size = x.shape[axis]
        positions = torch.arange(-low, size + high)
        if mode == "edge":
            positions = positions.clamp(0, size - 1)
        elif mode == "wrap":  # what is left of an axis goes round: a negative width takes off first
            first, kept = max(-low, 0), size + min(low, 0) + min(high, 0)
            positions = first + (positions - first) % kept
        else:  # reflect: triangle wave of period 2 (size - 1)
            period = max(2 * (size - 1), 1)
            positions = positions % period
            positions = torch.where(positions >= size, period - positions, positions)
        x = x.index_select(axis, positions)
    return x


def _tile(call: Call, inputs: Inputs) -> Tensor:
    x, times = need(inputs, 0), [int(count) for count in need(inputs, 1).tolist()]
    require_elements(f"operator Tile ({call.node.name})", [n * count for n, count in zip(x.shape, times, strict=True)])
    return x.repeat(times)


def _depth_to_space(call: Call, inputs: Inputs) -> Tensor:
    x, block = need(inputs, 0), call.attr("blocksize")
    n, c, h, w = x.shape
    if call.attr("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, block)
    y = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // block**2, h * block, w * block)


def _trilu(call: Call, inputs: Inputs) -> Tensor:
    x, k = need(inputs, 0), optional(inputs, 1)
    diagonal = 0 if k is None else int(k)
    return torch.triu(x, diagonal) if call.attr("upper", 1) else torch.tril(x, diagonal)


def _cum_sum(call: Call, inputs: Inputs) -> Tensor:
    x, axis = need(inputs, 0), int(need(inputs, 1))
    x = x.flip(axis) if call.attr("reverse", 0) else x
    y = x.cumsum(axis, dtype=x.dtype)
    y = y - x if call.attr("exclusive", 0) else y
    return y.flip(axis) if call.attr("reverse", 0) else y


SHAPING: dict[str, Implementation] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cum_sum,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda call, inputs: torch.tensor(need(inputs, 0).numel(), dtype=torch.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
