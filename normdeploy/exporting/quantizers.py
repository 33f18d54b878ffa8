"""One meaning for every way in which torch spells a quantizer, for a trace and for a run in float64.

torch has a dozen functions that quantize and dequantize at once (``fake_quantize_per_tensor_affine``,
``fused_moving_avg_obs_fake_quant``, ...), some without a kernel for a trace, and quantized tensors, which no exporter
knows. Under :class:`QuantizerMode` each of them is written with two primitives::

    quantized(x) = (clamp(round(x / scale) + zero, low, high) - zero) scale,    restored(q) = (q - zero) scale

A quantized tensor is there the float tensor that it stands for, with its :class:`Grid` beside it: whatever torch does
to quantized tensors ends on a grid again (:mod:`.quantized_operators`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Number = float | int
RANGES = {torch.quint8: (0, 255), torch.qint8: (-128, 127)}
"""Integers of the quantized types that activations have."""


@dataclass(frozen=True)
class Grid:
    """The values that a tensor takes.

    Args:
        scale: the step, a number or a tensor of one per channel.
        zero: the integer that stands for 0, or one per channel.
        axis: of the channels; None for one step for all.
        low, high: the smallest and the largest integer.
    """

    scale: Tensor | float
    zero: Tensor | int
    axis: int | None
    low: int
    high: int


class Primitives(Protocol):
    """How quantizers are computed."""

    def quantized(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the values of the grid nearest to x."""
        ...

    def restored(self, integers: Tensor, grid: Grid) -> Tensor:
        """Return what integers stand for."""
        ...


def spread(parameter: Tensor | Number, like: Tensor, axis: int | None) -> Tensor | Number:
    """Bring a step or zero point to a shape that broadcasts against ``like``."""
    if not isinstance(parameter, Tensor):
        return parameter if isinstance(parameter, int) else float(np.float32(parameter))  # as torch's kernels take it
    if parameter.numel() == 1:
        return parameter.reshape(())
    if axis is None:
        raise ValueError(f"{parameter.numel()} steps where one is expected: has the quantizer seen data?")
    return parameter.reshape([-1 if at == axis % like.dim() else 1 for at in range(like.dim())])


class Arithmetic:
    """The primitives in plain arithmetic of the tensors' own precision."""

    def quantized(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the values of the grid nearest to x."""
        scale, zero = spread(grid.scale, x, grid.axis), spread(grid.zero, x, grid.axis)
        return (torch.clamp(torch.round(x / scale) + zero, grid.low, grid.high) - zero) * scale

    def restored(self, integers: Tensor, grid: Grid) -> Tensor:
        """Return what integers stand for."""
        scale, zero = spread(grid.scale, integers, grid.axis), spread(grid.zero, integers, grid.axis)
        return (integers.to(torch.float32) - zero) * scale


class QuantizerMode(TorchFunctionMode):
    """Write every quantizer that runs under it with the primitives.

    Args:
        primitives: how they are computed.
    """

    def __init__(self, primitives: Primitives) -> None:
        super().__init__()
        self.primitives = primitives
        self._grids: dict[int, tuple[weakref.ref[Tensor], Grid]] = {}

    def grid_of(self, value: Any) -> Grid | None:
        """Return the grid of what stands for a quantized tensor; None of any other value."""
        found = self._grids.get(id(value))
        return None if found is None or found[0]() is not value else found[1]

    def on(self, value: Tensor, grid: Grid) -> Tensor:
        """Note that a tensor stands for a quantized one."""
        key = id(value)
        self._grids[key] = weakref.ref(value, lambda _: self._grids.pop(key, None)), grid
        return value

    def rounded(self, value: Tensor, grid: Grid) -> Tensor:
        """Quantize, and note the grid."""
        return self.on(self.primitives.quantized(value, grid), grid)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, or what stands for it here."""
        from normdeploy.exporting.quantized_operators import of_quantized, operator_of

        kwargs = dict(kwargs or {})
        packet = getattr(func, "_overloadpacket", func)
        written = FUNCTIONS.get(packet) or operator_of(packet)
        if written is not None:
            return written(self, *args, **kwargs)
        grids = [grid for leaf in pytree.tree_leaves((args, kwargs)) if (grid := self.grid_of(leaf)) is not None]
        return of_quantized(self, func, args, kwargs, grids[0]) if grids else func(*args, **kwargs)


def _per_tensor(mode: QuantizerMode, x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    return mode.primitives.quantized(x, Grid(scale, zero_point, None, quant_min, quant_max))


def _per_channel(
    mode: QuantizerMode, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    return mode.primitives.quantized(x, Grid(scale, zero_point, axis, quant_min, quant_max))


def _fused(
    mode: QuantizerMode,
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
    mode: QuantizerMode,
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
    mode: QuantizerMode,
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


def _quantize_per_tensor(mode: QuantizerMode, input: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Tensor:  # noqa: A002 - torch's name
    low, high = RANGES[dtype]
    return mode.rounded(input, Grid(scale, zero_point, None, low, high))


def _quantize_per_channel(
    mode: QuantizerMode,
    input: Tensor,  # noqa: A002 - torch's name
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    dtype: torch.dtype,
) -> Tensor:
    low, high = RANGES[dtype]
    return mode.rounded(input, Grid(scales, zero_points, axis, low, high))


def _dequantize(mode: QuantizerMode, value: Tensor) -> Tensor:
    if mode.grid_of(value) is not None:
        return value.detach()  # another tensor: what follows is done to floats
    return torch.dequantize(value) if value.is_quantized else value


FUNCTIONS: dict[Any, Callable[..., Any]] = {
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
"""What each function of torch that quantizes or dequantizes is, by the mode and the function's own arguments."""
