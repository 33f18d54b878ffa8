"""Pools in torch, with asymmetric pads, dilations, ceil_mode and counted padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need
from normdeploy.graph.operators.windows import CONV, explicit_pads, pad_spatial, pooled_size, spatial

_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def _geometry(call: Call, x: Tensor) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    rank = x.dim() - 2
    kernel = [int(k) for k in call.attr("kernel_shape")]
    stride, dilation = spatial(call, "strides", rank, 1), spatial(call, "dilations", rank, 1)
    begin, end = explicit_pads(call, x.shape[2:], kernel, stride, dilation)
    ceil = bool(call.attr("ceil_mode", 0))
    out = [
        pooled_size(n, k, s, d, low, high, ceil=ceil)
        for n, k, s, d, low, high in zip(x.shape[2:], kernel, stride, dilation, begin, end, strict=True)
    ]
    # Taps that no window puts on the input or its pads: a global pool is sometimes written as one far too large
    sizes = (low + n + high for low, n, high in zip(begin, x.shape[2:], end, strict=True))
    kernel = [min(k, -(-size // d)) for k, size, d in zip(kernel, sizes, dilation, strict=True)]
    # what the last window needs beyond the declared pad (ceil_mode); negative where input is left over
    reach = [
        (o - 1) * s + d * (k - 1) + 1 - n - low
        for o, s, d, k, n, low in zip(out, stride, dilation, kernel, x.shape[2:], begin, strict=True)
    ]
    return kernel, stride, dilation, begin, end, reach


def _window_sum(x: Tensor, kernel: list[int], stride: list[int], dilation: list[int]) -> Tensor:
    rank = len(kernel)
    flat = x.reshape(-1, 1, *x.shape[2:])
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype, device=x.device)
    summed = CONV[rank](flat, ones, stride=stride, dilation=dilation)
    return summed.reshape(*x.shape[:2], *summed.shape[2:])


def _average_pool(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    kernel, stride, dilation, begin, end, reach = _geometry(call, x)
    mask = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    if call.attr("count_include_pad", 0):
        mask = pad_spatial(mask, begin, end, value=1.0)
        rest = [r - e for r, e in zip(reach, end, strict=True)]
        mask = pad_spatial(mask, [0] * len(rest), rest)
    else:
        mask = pad_spatial(mask, begin, reach)
    summed = _window_sum(pad_spatial(x, begin, reach), kernel, stride, dilation)
    return summed / _window_sum(mask, kernel, stride, dilation)


def _max_pool(call: Call, inputs: Inputs) -> Tensor | list[Tensor]:
    x = need(inputs, 0)
    kernel, stride, dilation, begin, _, reach = _geometry(call, x)
    lowest = float("-inf") if x.is_floating_point() else int(torch.iinfo(x.dtype).min)
    padded = pad_spatial(x, begin, reach, value=lowest)
    if len(call.node.outputs) < 2 or not call.node.outputs[1].name:
        return _MAX_POOL[len(kernel)](padded, kernel, stride, 0, dilation)
    numbers = padded if padded.is_floating_point() else padded.to(torch.float64)
    best, places = _MAX_POOL[len(kernel)](numbers, kernel, stride, 0, dilation, return_indices=True)
    by_columns = bool(call.attr("storage_order", 0))
    return [best.to(x.dtype), _flat_places(places, x.shape, padded.shape[2:], begin, by_columns=by_columns)]


def _flat_places(
    places: Tensor, shape: Sequence[int], padded: Sequence[int], begin: Sequence[int], *, by_columns: bool
) -> Tensor:
    """Return places in padded planes as indices into the whole flat input, planes counted by rows or by columns."""
    sizes, flat, stride = list(shape[2:]), torch.zeros_like(places), 1
    at: list[Tensor] = []
    for size, low in zip(reversed(padded), reversed(begin), strict=True):
        at.insert(0, places % size - low)
        places = places // size
    axes = range(len(sizes)) if by_columns else reversed(range(len(sizes)))
    for axis in axes:
        flat, stride = flat + at[axis] * stride, stride * sizes[axis]
    planes = torch.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], *(1,) * len(sizes))
    return flat + planes * stride


def _spatial_axes(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _lp_pool(call: Call, inputs: Inputs) -> Tensor:
    """Pads are zeros, whose powers are zeros: they add nothing to a window's norm."""
    x, p = need(inputs, 0), int(call.attr("p", 2))
    kernel, stride, dilation, begin, _, reach = _geometry(call, x)
    return _window_sum(pad_spatial(x.abs() ** p, begin, reach), kernel, stride, dilation) ** (1 / p)


def _global_lp_pool(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    norm: Tensor = torch.linalg.vector_norm(x, ord=call.attr("p", 2), dim=_spatial_axes(x), keepdim=True)
    return norm


POOLING: dict[str, Implementation] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda call, inputs: need(inputs, 0).mean(_spatial_axes(need(inputs, 0)), keepdim=True),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": lambda call, inputs: need(inputs, 0).amax(_spatial_axes(need(inputs, 0)), keepdim=True),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
