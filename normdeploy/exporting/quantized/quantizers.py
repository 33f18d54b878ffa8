"""One meaning for every way in which torch spells a quantizer, for a trace and for a run in float64.

torch has a dozen functions that quantize and dequantize at once (``fake_quantize_per_tensor_affine``,
``fused_moving_avg_obs_fake_quant``, ...), some without a kernel for a trace, and quantized tensors, which no exporter
knows. Under :mod:`.quantizer_mode` each of them is written with two primitives::

    quantized(x) = (clamp(round(x / scale) + zero, low, high) - zero) scale,    restored(q) = (q - zero) scale

(round(x / scale + zero) where the zero point is no integer.)

A quantized tensor is there the float tensor that it stands for, with its :class:`Grid` beside it: whatever torch does
to quantized tensors ends on a grid again (:mod:`.quantized_operators`).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Number = float | int


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


def rounded(steps: Tensor, zero: Tensor | Number) -> Tensor:
    """Return the integers nearest to a number of steps from a zero point: one that is no integer is added before."""
    if isinstance(zero, Tensor) and zero.is_floating_point():
        return torch.round(steps + zero)
    return torch.round(steps) + zero


class Arithmetic:
    """The primitives in plain arithmetic of the tensors' own precision."""

    def quantized(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the values of the grid nearest to x."""
        scale, zero = spread(grid.scale, x, grid.axis), spread(grid.zero, x, grid.axis)
        return (torch.clamp(rounded(x / scale, zero), grid.low, grid.high) - zero) * scale

    def restored(self, integers: Tensor, grid: Grid) -> Tensor:
        """Return what integers stand for."""
        scale, zero = spread(grid.scale, integers, grid.axis), spread(grid.zero, integers, grid.axis)
        return (integers.to(torch.float32) - zero) * scale


class OnGrids:
    """What stands for quantized tensors while quantizers are written with primitives, and on which grid.

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
