"""Window arithmetic shared by convolutions and pools: pads, auto_pad, output sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.operators.call import Call

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
"""torch's convolutions by number of spatial axes."""


def spatial(call: Call, name: str, rank: int, default: int) -> list[int]:
    """Return a per-axis integer attribute of ``rank`` entries."""
    given = call.attr(name)
    return [default] * rank if given is None else [int(item) for item in given]


def explicit_pads(
    call: Call, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the pads (begin, end) of a convolution or pool, auto_pad resolved.

    SAME: output = ceil(size / stride), the odd pad at the end (UPPER) or the beginning (LOWER).
    """
    rank = len(size)
    auto = call.attr("auto_pad", "NOTSET")
    if auto == "VALID":
        return [0] * rank, [0] * rank
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = [], []
        for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            small, large = total // 2, total - total // 2
            begin.append(small if auto == "SAME_UPPER" else large)
            end.append(large if auto == "SAME_UPPER" else small)
        return begin, end
    pads = spatial(call, "pads", 2 * rank, 0)
    return pads[:rank], pads[rank:]


def pad_spatial(x: Tensor, begin: Sequence[int], end: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad (or crop, where negative) the trailing axes of ``x``."""
    if not any(begin) and not any(end):
        return x
    flat: list[int] = []
    for low, high in zip(reversed(begin), reversed(end), strict=True):
        flat += [low, high]
    return F.pad(x, flat, value=value)


def pooled_size(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, *, ceil: bool) -> int:
    """Return a pool's output size; with ``ceil`` the last window must start inside the input or its left pad."""
    span = size + begin + end - (dilation * (kernel - 1) + 1)
    if not ceil:
        return span // stride + 1
    out = -(-span // stride) + 1
    if (out - 1) * stride >= size + begin:
        out -= 1
    return out
