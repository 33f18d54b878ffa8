"""Where a convolution or pool reads: tap i of output p reads input p * stride + i * dilation - begin, per spatial axis.

With n inputs the number of outputs is floor((n + excess - 1) / stride) + 1, where
excess = begin + end - (size - 1) * dilation: two windows of one stride and one excess give outputs of one size for
every n, so that they may be summed whatever the dynamic dimensions are. Where n is known, one size is enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

Ints = tuple[int, ...]
Place = tuple[Any, ...]
"""An index of integers, slices and an ellipsis."""

Sizes = tuple[int | None, ...]
"""Spatial dimensions, None where they are dynamic."""


class Apart(Exception):
    """Two linear maps are not one, and why: a clause about the two that a reason can end in."""


@dataclass(frozen=True)
class Window:
    """Taps, stride, dilation and zero padding per spatial axis; of no axis for a map of single positions.

    Where padding is below 0, the input is cut. A transposed convolution has one that ``spreads``: input p is written,
    times tap i, to output p * stride + i * dilation - begin. The same taps are then summed and put together.
    """

    size: Ints
    stride: Ints
    dilation: Ints
    begin: Ints
    end: Ints
    spreads: bool = False

    @classmethod
    def point(cls, rank: int) -> Window:
        """Return the window of an identity: one tap, stride 1, no padding."""
        ones, zeros = (1,) * rank, (0,) * rank
        return cls(ones, ones, ones, zeros, zeros)

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.size)

    @property
    def span(self) -> Ints:
        """Distance of the first tap to the last, per axis."""
        return tuple((size - 1) * step for size, step in zip(self.size, self.dilation, strict=True))

    @property
    def excess(self) -> Ints:
        """What the window adds to the number of its inputs, per axis."""
        return tuple(b + e - span for b, e, span in zip(self.begin, self.end, self.span, strict=True))

    @property
    def is_padded(self) -> bool:
        """Whether it reads zeros that are not in its input."""
        return any(width > 0 for width in (*self.begin, *self.end))

    @property
    def cuts(self) -> bool:
        """Whether it leaves out places at an end of its input, which a Conv cannot."""
        return any(width < 0 for width in (*self.begin, *self.end))

    @property
    def is_point(self) -> bool:
        """Whether each output reads the input at its own place."""
        return self == Window.point(self.rank)

    @property
    def reach(self) -> int:
        """Return a spatial size that shows both borders and an interior."""
        return max((span + stride for span, stride in zip(self.span, self.stride, strict=True)), default=2)

    def outputs(self, sizes: Sizes) -> Sizes:
        """Return the spatial size of the result for inputs of ``sizes``."""
        return tuple(
            None
            if size is None
            else (size - 1) * stride - excess + 1
            if self.spreads
            else (size + excess - 1) // stride + 1
            for size, excess, stride in zip(sizes, self.excess, self.stride, strict=True)
        )

    def attributes(self, group: int) -> list[ir.Attr]:
        """Return the attributes of the Conv, or ConvTranspose, with this window."""
        return [
            ir.AttrInt64("group", group),
            ir.AttrInt64s("kernel_shape", self.size),
            ir.AttrInt64s("strides", self.stride),
            ir.AttrInt64s("dilations", self.dilation),
            ir.AttrInt64s("pads", (*self.begin, *self.end)),
        ]

    def __matmul__(self, first: Window) -> Window:
        """Return the window of this one after ``first``; its taps are the sums of both windows' taps.

        The second's padding must read what the first makes of zeros: see :class:`.linear_map.LinearMap`.
        """
        size, stride, dilation, begin, end = [], [], [], [], []
        for axis in range(self.rank):
            step = first.stride[axis]
            apart = _spacing([(first.size[axis], first.dilation[axis]), (self.size[axis], self.dilation[axis] * step)])
            span = first.span[axis] + step * self.span[axis]
            before = first.begin[axis] + step * self.begin[axis]
            excess = first.excess[axis] + step * self.excess[axis]
            size.append(span // apart + 1)
            stride.append(step * self.stride[axis])
            dilation.append(apart)
            begin.append(before)
            end.append(excess - before + span)
        spreads = self.spreads or first.spreads
        return Window(tuple(size), tuple(stride), tuple(dilation), tuple(begin), tuple(end), spreads)

    def union(self, other: Window, sizes: Sizes) -> Window:
        """Return the smallest window that reads the taps of both.

        Args:
            other: reads the same input.
            sizes: the input's.

        Raises:
            Apart: their results differ in size, or may.
        """
        if self.stride != other.stride:
            raise Apart(f"their strides differ ({_shown(self.stride)} and {_shown(other.stride)})")
        if self.spreads != other.spreads:
            raise Apart("one spreads each place over several, the other reads several for one")
        excess = tuple(map(max, self.excess, other.excess))
        outputs = self.outputs(sizes), other.outputs(sizes)
        for axis, (mine, theirs) in enumerate(zip(self.excess, other.excess, strict=True)):
            if mine != theirs and outputs[0][axis] is None and not self.spreads:
                raise Apart("their results have one size for some sizes of the input only; export it with a fixed size")
            if mine != theirs and (outputs[0][axis] != outputs[1][axis] or self.spreads):
                raise Apart("their results differ in size")
        size, dilation, begin, end = [], [], [], []
        for axis in range(self.rank):
            before = max(self.begin[axis], other.begin[axis])
            grids = [(window.size[axis], window.dilation[axis]) for window in (self, other)]
            step = _spacing(grids, abs(self.begin[axis] - other.begin[axis]))
            span = max(window.span[axis] - window.begin[axis] for window in (self, other)) + before
            size.append(span // step + 1)
            dilation.append(step)
            begin.append(before)
            end.append(excess[axis] - before + span)
        return Window(tuple(size), self.stride, tuple(dilation), tuple(begin), tuple(end), self.spreads)

    def taps_in(self, whole: Window) -> tuple[slice, ...]:
        """Return which taps of ``whole``, a union with this one, are this window's."""
        places = []
        for axis in range(self.rank):
            step = whole.dilation[axis]
            start = (whole.begin[axis] - self.begin[axis]) // step
            places.append(slice(start, start + self.span[axis] // step + 1, self.dilation[axis] // step or 1))
        return tuple(places)

    def taps_after(self, first: Window, whole: Window) -> list[tuple[Ints, tuple[slice, ...]]]:
        """Return for each tap of this window which taps of ``whole``, this one after ``first``, are the first's."""
        found = []
        for tap in itertools.product(*map(range, self.size)):
            places = []
            for axis, at in enumerate(tap):
                step = whole.dilation[axis]
                start = at * self.dilation[axis] * first.stride[axis] // step
                places.append(slice(start, start + first.span[axis] // step + 1, first.dilation[axis] // step or 1))
            found.append((tap, tuple(places)))
        return found


def _spacing(grids: Sequence[tuple[int, int]], shift: int = 0) -> int:
    """Return the largest distance of taps that holds all grids of (taps, distance), shifted against each other."""
    return math.gcd(shift, *(step for size, step in grids if size > 1)) or 1


def _shown(values: Ints) -> str:
    return "x".join(map(str, values))
