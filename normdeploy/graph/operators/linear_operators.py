"""Linear operators in torch: Conv, ConvTranspose, Gemm, MatMul, Einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.windows import CONV, explicit_pads, pad_spatial, spatial

_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _conv(call: Call, inputs: Inputs) -> Tensor:
    x, w, b = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    rank = w.dim() - 2
    stride, dilation = spatial(call, "strides", rank, 1), spatial(call, "dilations", rank, 1)
    x, groups = padded(call, x, w.shape[2:]), call.attr("group", 1)
    if groups >= _MANY_GROUPS and x.numel() * math.prod(w.shape[2:]) <= _FEW_READ:
        return _by_groups(x, w, b, stride, dilation, groups)
    return CONV[rank](x, w, b, stride=stride, padding=0, dilation=dilation, groups=groups)


_MANY_GROUPS = 16
"""From here on torch, which computes float64 group by group, takes three times as long as one product of stacks."""

_FEW_READ = 1 << 22
"""Elements that may be laid out for it, each input as often as there are taps."""


def _by_groups(
    x: Tensor, w: Tensor, b: Tensor | None, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """Convolve in many groups, as one product of stacks: [G, O/g, I/g taps] @ [N, G, I/g taps, positions]."""
    rank, count = w.dim() - 2, x.shape[0]
    for axis, (step, apart) in enumerate(zip(stride, dilation, strict=True), start=2):
        extent = (w.shape[axis] - 1) * apart + 1
        x = x.unfold(axis, extent, step)[..., ::apart]
    shown = tuple(x.shape[2 : 2 + rank])
    x = x.permute(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    y = w.reshape(groups, w.shape[0] // groups, -1) @ x.reshape(count, groups, -1, math.prod(shown))
    y = y.reshape(count, w.shape[0], *shown)
    return y if b is None else y + b.reshape(-1, *([1] * rank))


def padded(call: Call, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """Return a Conv's input with its zeros around it."""
    rank = len(kernel)
    stride, dilation = spatial(call, "strides", rank, 1), spatial(call, "dilations", rank, 1)
    begin, end = explicit_pads(call, x.shape[2:], kernel, stride, dilation)
    return pad_spatial(x, begin, end)


def _conv_transpose(call: Call, inputs: Inputs) -> Tensor:
    x, w, b = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    rank = w.dim() - 2
    kernel = list(w.shape[2:])
    stride, dilation = spatial(call, "strides", rank, 1), spatial(call, "dilations", rank, 1)
    extra = spatial(call, "output_padding", rank, 0)
    wanted = call.attr("output_shape")
    auto = call.attr("auto_pad", "NOTSET")
    full = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[2:], stride, dilation, kernel, strict=True)]
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        target = (
            [int(n) for n in wanted][-rank:] if wanted else [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        )
        total = [f + e - t for f, e, t in zip(full, extra, target, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    elif auto == "VALID":
        begin, end = [0] * rank, [0] * rank
    else:
        pads = spatial(call, "pads", 2 * rank, 0)
        begin, end = pads[:rank], pads[rank:]
    y = _CONV_TRANSPOSE[rank](x, w, None, stride=stride, dilation=dilation, groups=call.attr("group", 1))
    y = pad_spatial(y, [-low for low in begin], [e - high for e, high in zip(extra, end, strict=True)])
    return y if b is None else y + b.reshape(-1, *([1] * rank))


def _gemm(call: Call, inputs: Inputs) -> Tensor:
    a, b, c = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    a = a[None] if a.dim() == 1 else a  # one row, as onnxruntime reads it: what a Squeeze leaves of a batch of one
    a = a.T if call.attr("transA", 0) else a
    b = b.T if call.attr("transB", 0) else b
    return with_addend(call, a @ b, c)


def with_addend(call: Call, product: Tensor, c: Tensor | None) -> Tensor:
    """Return alpha A B + beta C of a Gemm."""
    y = torch.mul(product, call.attr("alpha", 1.0))
    return y if c is None else y + torch.mul(c, call.attr("beta", 1.0))


def _einsum(call: Call, inputs: Inputs) -> Tensor:
    result: Tensor = torch.einsum(call.attr("equation"), *[item for item in inputs if item is not None])
    return result


LINEAR: dict[str, Implementation] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": lambda call, inputs: torch.matmul(need(inputs, 0), need(inputs, 1)),
}
