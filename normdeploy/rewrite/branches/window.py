"""Where a convolution or pool reads: tap i of output p reads input p * stride + i * dilation - begin, per spatial axis.

With n inputs the number of outputs is floor((n + excess - 1) / stride) + 1, where
excess = begin + end - (size - 1) * dilation: two windows of one stride and one excess give outputs of one size for
every n, so that they may be summed whatever the dynamic dimensions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.rewrite.affine.constant import integer, ints, string

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Taps, stride, dilation and zero padding per spatial axis."""

    size: Ints
    stride: Ints
    dilation: Ints
    begin: Ints
    end: Ints

    @classmethod
    def point(cls, rank: int) -> Window:
        """Return the window of an identity: one tap, stride 1, no padding."""
        ones, zeros = (1,) * rank, (0,) * rank
        return cls(ones, ones, ones, zeros, zeros)

    @property
    def excess(self) -> Ints:
        """What the window adds to the number of its inputs, per axis."""
        return tuple(
            begin + end - (size - 1) * dilation
            for begin, end, size, dilation in zip(self.begin, self.end, self.size, self.dilation, strict=True)
        )

    @property
    def is_padded(self) -> bool:
        """Whether it reads zeros that are not in its input."""
        return any(self.begin) or any(self.end)

    @property
    def is_point(self) -> bool:
        """Whether it has one tap and no padding (any stride)."""
        return all(size == 1 for size in self.size) and not self.is_padded

    @property
    def reach(self) -> int:
        """Return a spatial size that shows both borders and an interior."""
        return max(
            max((size - 1) * dilation + stride, 2)
            for size, dilation, stride in zip(self.size, self.dilation, self.stride, strict=True)
        )

    def attributes(self, group: int) -> list[ir.Attr]:
        """Return the attributes of the Conv with this window."""
        return [
            ir.AttrInt64("group", group),
            ir.AttrInt64s("kernel_shape", self.size),
            ir.AttrInt64s("strides", self.stride),
            ir.AttrInt64s("dilations", self.dilation),
            ir.AttrInt64s("pads", (*self.begin, *self.end)),
        ]


def window_of(node: ir.Node, size: Sequence[int]) -> Window | None:
    """Return the window of a Conv or AveragePool with ``size`` taps; None if its padding depends on a dynamic size."""
    rank = len(size)
    stride = tuple(ints(node, "strides", (1,) * rank))
    dilation = tuple(ints(node, "dilations", (1,) * rank))
    automatic = string(node, "auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        totals = _same_totals(node, size, stride, dilation)
        if totals is None:
            return None
        less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        begin, end = (less, more) if automatic == "SAME_UPPER" else (more, less)
    elif automatic == "VALID":
        begin = end = (0,) * rank
    else:
        pads = tuple(ints(node, "pads", (0,) * 2 * rank))
        begin, end = pads[:rank], pads[rank:]
    if min((*begin, *end), default=0) < 0:
        return None
    return Window(tuple(size), stride, dilation, begin, end)


def _same_totals(node: ir.Node, size: Sequence[int], stride: Ints, dilation: Ints) -> list[int] | None:
    """Return the padding per axis of auto_pad SAME: what makes ceil(n / stride) outputs."""
    source = node.inputs[0]
    totals = []
    for axis in range(len(size)):
        extent = (size[axis] - 1) * dilation[axis] + 1
        if stride[axis] == 1:
            totals.append(extent - 1)
            continue
        dim = None if source is None or source.shape is None else source.shape[axis + 2]
        if not isinstance(dim, int):
            return None
        totals.append(max((-(-dim // stride[axis]) - 1) * stride[axis] + extent - dim, 0))
    return totals


def is_exact_average(node: ir.Node) -> bool:
    """Tell whether an AveragePool divides by the same number everywhere: its padding counts, or there is none."""
    if integer(node, "ceil_mode", 0) != 0:
        return False
    if integer(node, "count_include_pad", 0) == 1 or string(node, "auto_pad", "NOTSET") == "VALID":
        return True
    return string(node, "auto_pad", "NOTSET") == "NOTSET" and not any(ints(node, "pads", ()))


def compose(first: Window, second: Window) -> Window | None:
    """Return the window of ``second`` after ``first``, or None where no single window reads the same inputs.

    The border must be looked at besides: see :func:`normdeploy.rewrite.branches.term.compose`.
    """
    size, stride, dilation, begin, end = [], [], [], [], []
    for axis in range(len(first.size)):
        a, b = first.size[axis], second.size[axis]
        step = first.stride[axis]
        if b > 1 and step != 1:
            return None
        if a > 1 and b > 1 and first.dilation[axis] != second.dilation[axis]:
            return None
        apart = first.dilation[axis] if a > 1 else second.dilation[axis]
        taps = a + b - 1
        before = first.begin[axis] + step * second.begin[axis]
        excess = first.excess[axis] + step * second.excess[axis]
        after = excess - before + (taps - 1) * apart
        if after < 0:
            return None
        size.append(taps)
        stride.append(step * second.stride[axis])
        dilation.append(apart)
        begin.append(before)
        end.append(after)
    return Window(tuple(size), tuple(stride), tuple(dilation), tuple(begin), tuple(end))


def union(windows: Sequence[Window]) -> Window | None:
    """Return the smallest window that reads all taps of ``windows``; None if their outputs or taps do not line up."""
    head = windows[0]
    if any(other.stride != head.stride or other.excess != head.excess for other in windows):
        return None
    size, dilation, begin, end = [], [], [], []
    for axis in range(len(head.size)):
        apart = {window.dilation[axis] for window in windows if window.size[axis] > 1}
        if len(apart) > 1:
            return None
        step = apart.pop() if apart else 1
        most = max(window.begin[axis] for window in windows)
        if any((most - window.begin[axis]) % step for window in windows):
            return None
        taps = max((most - window.begin[axis]) // step + window.size[axis] for window in windows)
        after = head.excess[axis] - most + (taps - 1) * step
        if after < 0:
            return None
        size.append(taps)
        dilation.append(step)
        begin.append(most)
        end.append(after)
    return Window(tuple(size), head.stride, tuple(dilation), tuple(begin), tuple(end))


def offset(window: Window, whole: Window) -> Ints:
    """Return at which taps of ``whole``, a union with it, ``window`` starts."""
    return tuple(
        (outer - inner) // step for outer, inner, step in zip(whole.begin, window.begin, whole.dilation, strict=True)
    )
