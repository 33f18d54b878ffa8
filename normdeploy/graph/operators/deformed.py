"""DeformConv in torch: a convolution whose taps are read beside their places, between the four pixels around each.

Tap (a, b) of the output pixel (i, j) is read at (i s - p + a d + dy, j s - p + b d + dx), s, p and d the stride, the
pad in front and the dilation of that axis, dy and dx of the operand ``offset``; outside of the picture there are zeros.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.windows import spatial


def _deform_conv(call: Call, inputs: Inputs) -> Tensor:
    x, w, offset = (need(inputs, index) for index in range(3))
    b, mask = optional(inputs, 3), optional(inputs, 4)
    if x.dim() != 4:
        raise NotImplementedError("other than pictures")
    count, channels, *size = x.shape
    taps, shown = w.shape[2:], offset.shape[2:]
    groups, given = call.attr("group", 1), call.attr("offset_group", 1)
    moved = offset.reshape(count, given, *taps, 2, *shown)
    read = _between_pixels(
        x.reshape(count, given, channels // given, *size),
        *(_places(call, axis, taps[axis], shown[axis]) + moved[:, :, :, :, axis] for axis in range(2)),
    )
    if mask is not None:
        read = read * mask.reshape(count, given, 1, *taps, *shown)
    rows = read.reshape(count, groups, channels // groups * math.prod(taps), math.prod(shown))
    y = (w.reshape(groups, w.shape[0] // groups, -1) @ rows).reshape(count, w.shape[0], *shown)
    return y if b is None else y + b.reshape(-1, 1, 1)


def _places(call: Call, axis: int, taps: int, shown: int) -> Tensor:
    """Return where along an axis each tap (first or second axis) of each output pixel (third or fourth) is read."""
    stride, dilation, pads = (spatial(call, *rest) for rest in (("strides", 2, 1), ("dilations", 2, 1), ("pads", 4, 0)))
    tap, pixel = torch.arange(taps) * dilation[axis], torch.arange(shown) * stride[axis] - pads[axis]
    places = tap[:, None] + pixel
    return places[:, None, :, None] if axis == 0 else places[None, :, None, :]


def _between_pixels(x: Tensor, y_at: Tensor, x_at: Tensor) -> Tensor:
    """Return pictures [N, G, C, H, W] read at places [N, G, ...], as [N, G, C, ...]: linear along both axes."""
    x = F.pad(x, (1, 1, 1, 1))
    height, width = x.shape[-2:]
    pixels, result = x.flatten(3), x.new_zeros(())
    for row, down in _neighbours(y_at, height):
        for column, across in _neighbours(x_at, width):
            place = row * width + column
            found = pixels.gather(3, place.flatten(2)[:, :, None].expand(-1, -1, x.shape[2], -1))
            result = result + (down * across)[:, :, None] * found.reshape(*found.shape[:3], *place.shape[2:])
    return result


def _neighbours(at: Tensor, size: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the two pixels around each place on an axis that has a zero at either end, and what each weighs."""
    at = (at + 1).clamp(0, size - 1)  # all that lies further out reads the same zero
    beside = at - at.floor()
    before, behind = (end.nan_to_num().long() for end in (at.floor(), at.ceil()))  # no number: then no weight is one
    return (before, 1 - beside), (behind, beside)


DEFORMED: dict[str, Implementation] = {"DeformConv": _deform_conv}
