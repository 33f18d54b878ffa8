"""What each function of torch that quantizes or dequantizes is, in primitives of :mod:`.quantizers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normdeploy.exporting.quantized.quantizers import Grid, OnGrids

RANGES = {torch.quint8: (0, 255), torch.qint8: (-128, 127)}
"""Integers of the quantized types that activations have."""


def function_of(func: Any) -> Callable[..., Any] | None:
    """Return what a function that quantizes or dequantizes is, by the mode and its own arguments; None of any other."""
    packet = getattr(func, "_overloadpacket", func)
    return _FUNCTIONS.get(packet) or _DECOMPOSED.get(_name(packet))


def is_quantizer(func: Any) -> bool:
    """Tell whether a function of torch quantizes, dequantizes, or computes with quantized tensors."""
    packet = getattr(func, "_overloadpacket", func)
    return packet in _FUNCTIONS or _name(packet).startswith(("quantized::", "quantized_decomposed::"))


def _name(packet: Any) -> str:
    return str(getattr(packet, "_qualified_op_name", ""))


def _per_tensor(mode: OnGrids, x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    return mode.primitives.quantized(x, Grid(scale, zero_point, None, quant_min, quant_max))


def _per_channel(
    mode: OnGrids, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    return mode.primitives.quantized(x, Grid(scale, zero_point, axis, quant_min, quant_max))


def _fused(
    mode: OnGrids,
    x: Tensor,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Tensor:
    del observer_on, running_min, running_max, averaging_const, symmetric_quant  # evaluation mode: observers are off
    if not int(fake_quant_on[0]):
        return x
    if per_row_fake_quant:
        return _per_channel(mode, x, scale, zero_point, ch_axis, quant_min, quant_max)
    return _per_tensor(mode, x, scale, zero_point, quant_min, quant_max)


def _whole(zero_point: Tensor, low: int, high: int) -> Tensor:
    return torch.clamp(torch.round(zero_point), low, high).to(torch.int32)


def _learnable(
    mode: OnGrids,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    del grad_factor
    return _per_tensor(mode, x, scale, _whole(zero_point, quant_min, quant_max), quant_min, quant_max)


def _learnable_channels(
    mode: OnGrids,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    del grad_factor
    return _per_channel(mode, x, scale, _whole(zero_point, quant_min, quant_max), axis, quant_min, quant_max)


def _quantize_per_tensor(mode: OnGrids, input: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Tensor:  # noqa: A002 - torch's name
    low, high = RANGES[dtype]
    return mode.rounded(input, Grid(scale, zero_point, None, low, high))


def _quantize_per_channel(
    mode: OnGrids,
    input: Tensor,  # noqa: A002 - torch's name
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    dtype: torch.dtype,
) -> Tensor:
    low, high = RANGES[dtype]
    return mode.rounded(input, Grid(scales, zero_points, axis, low, high))


def _dequantize(mode: OnGrids, value: Tensor) -> Tensor:
    if mode.grid_of(value) is not None:
        return value.detach()  # another tensor: what follows is done to floats
    return torch.dequantize(value) if value.is_quantized else value


def _to_integers(
    mode: OnGrids,
    input: Tensor,  # noqa: A002 - torch's name
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    del dtype  # integers are told by their range
    return mode.rounded(input, Grid(scale, zero_point, None, quant_min, quant_max))


def _to_integers_by_channel(
    mode: OnGrids,
    input: Tensor,  # noqa: A002 - torch's name
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    del dtype
    return mode.rounded(input, Grid(scales, _origin(scales, zero_points), axis, quant_min, quant_max))


def _from_integers(
    mode: OnGrids,
    input: Tensor,  # noqa: A002 - torch's name
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    del dtype, out_dtype  # both float32 where torch has a kernel
    return _restored(mode, input, Grid(scale, zero_point, None, quant_min, quant_max))


def _from_integers_by_channel(
    mode: OnGrids,
    input: Tensor,  # noqa: A002 - torch's name
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    del dtype, out_dtype
    return _restored(mode, input, Grid(scales, _origin(scales, zero_points), axis, quant_min, quant_max))


def _origin(scales: Tensor, zero_points: Tensor | None) -> Tensor:
    return torch.zeros_like(scales, dtype=torch.int32) if zero_points is None else zero_points


def _restored(mode: OnGrids, integers: Tensor, grid: Grid) -> Tensor:
    if mode.grid_of(integers) is not None:
        return integers.detach()  # as with `dequantize`
    return mode.primitives.restored(integers, grid)


_DECOMPOSED: dict[str, Callable[..., Any]] = {
    "quantized_decomposed::quantize_per_tensor": _to_integers,
    "quantized_decomposed::quantize_per_channel": _to_integers_by_channel,
    "quantized_decomposed::dequantize_per_tensor": _from_integers,
    "quantized_decomposed::dequantize_per_channel": _from_integers_by_channel,
}
"""The operators that PT2E puts in, by name: torch does not register them before somebody asks for them.

They are a pair of float tensor and integers; here the integers are the float tensor that they stand for, as a
quantized tensor is. torch's kernels of them take float32 alone.
"""
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.fake_quantize_per_tensor_affine: _per_tensor,
    torch.ops.aten.fake_quantize_per_tensor_affine: _per_tensor,
    torch.fake_quantize_per_channel_affine: _per_channel,
    torch.ops.aten.fake_quantize_per_channel_affine: _per_channel,
    torch.fused_moving_avg_obs_fake_quant: _fused,
    torch.ops.aten.fused_moving_avg_obs_fake_quant: _fused,
    torch._fake_quantize_learnable_per_tensor_affine: _learnable,
    torch.ops.aten._fake_quantize_learnable_per_tensor_affine: _learnable,
    torch._fake_quantize_learnable_per_channel_affine: _learnable_channels,
    torch.ops.aten._fake_quantize_learnable_per_channel_affine: _learnable_channels,
    torch.quantize_per_tensor: _quantize_per_tensor,
    torch.ops.aten.quantize_per_tensor: _quantize_per_tensor,
    torch.quantize_per_channel: _quantize_per_channel,
    torch.dequantize: _dequantize,
    torch.ops.aten.dequantize: _dequantize,
    Tensor.dequantize: _dequantize,
}
