"""Upsample (opsets 7 to 9) and the Resize of opset 10, which the standard's reference implementation lacks.

Both read x_in = x_out / scale along each axis; nearest rounds it down (up where the axis shrinks), linear interpolates
between its two neighbours, the border repeated.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need


def _upsample(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    given = call.attr("scales")
    scales = [float(item) for item in (need(inputs, 1).tolist() if given is None else given)]
    if len(scales) != x.dim():
        raise ValueError(f"{len(scales)} scales for a tensor of rank {x.dim()}; expected one per axis")
    nearest = call.attr("mode", "nearest") == "nearest"
    for axis, scale in enumerate(scales):
        if scale != 1:
            x = _nearest(x, axis, scale) if nearest else _linear(x, axis, scale)
    return x


def resampled_size(size: int, scale: float) -> int:
    """Return floor(size * scale) in float32, the precision that the scale is stored in, as runtimes compute it."""
    return int(np.float32(size) * np.float32(scale))


def _positions(x: Tensor, axis: int, scale: float) -> Tensor:
    return torch.arange(resampled_size(x.shape[axis], scale), dtype=torch.float64) / scale


def _nearest(x: Tensor, axis: int, scale: float) -> Tensor:
    positions = _positions(x, axis, scale)
    index = (positions.floor() if scale >= 1 else positions.ceil()).long()
    return x.index_select(axis, index.clamp(0, x.shape[axis] - 1))


def _linear(x: Tensor, axis: int, scale: float) -> Tensor:
    positions = _positions(x, axis, scale)
    low = positions.floor().long().clamp(0, x.shape[axis] - 1)
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    weight = (positions - low).clamp(0, 1).to(x.dtype).reshape(-1, *(1,) * (x.dim() - axis - 1))
    return x.index_select(axis, low) * (1 - weight) + x.index_select(axis, high) * weight


def _resize(call: Call, inputs: Inputs) -> Tensor:
    if call.opset > 10:
        raise NotImplementedError  # the reference implementation knows the coordinate modes
    return _upsample(call, inputs)


def _grid_sample(call: Call, inputs: Inputs) -> Tensor:
    mode = call.attr("mode", "linear")
    names = {"linear": "bilinear", "cubic": "bicubic"}  # opset 20 renamed them
    return torch.nn.functional.grid_sample(
        need(inputs, 0),
        need(inputs, 1).to(need(inputs, 0).dtype),
        mode=names.get(mode, mode),
        padding_mode=call.attr("padding_mode", "zeros"),
        align_corners=bool(call.attr("align_corners", 0)),
    )


RESAMPLING: dict[str, Implementation] = {"GridSample": _grid_sample, "Resize": _resize, "Upsample": _upsample}
