"""The window of an operator: of a Conv, a pool, a ConvTranspose; of one tap where it only widens or cuts spatial axes.

That are a Pad of zeros, and a Slice of every place between two ends, as ACNet cuts what its narrow kernels read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.operator_inputs import optional
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.branches.window import Apart, Sizes, Window

_NO_END = np.iinfo(np.int32).max
"""An end from here on is none, of whatever size the axis is."""


def window_of_taps(node: ir.Node, size: Sequence[int], sizes: Sizes) -> Window:
    """Return the window of a Conv or AveragePool with ``size`` taps on an input of ``sizes``.

    Raises:
        Apart: its padding depends on a dynamic size, or it cuts its input.
    """
    ones = (1,) * len(size)
    stride, dilation = (
        tuple(node.attributes.get_ints("strides", ones)),
        tuple(node.attributes.get_ints("dilations", ones)),
    )
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    begin = end = (0,) * len(size)
    if automatic == "NOTSET":
        pads = tuple(node.attributes.get_ints("pads", begin * 2))
        begin, end = pads[: len(size)], pads[len(size) :]
    elif automatic != "VALID":
        totals = []
        for known, taps, pace, apart in zip(sizes, size, stride, dilation, strict=True):
            extent = (taps - 1) * apart + 1
            if known is None and pace != 1:
                raise Apart(f"the padding of {describe(node)} depends on a dynamic size; export it with a fixed size")
            # what makes ceil(n / stride) outputs
            totals.append(extent - 1 if known is None else max((-(-known // pace) - 1) * pace + extent - known, 0))
        less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        begin, end = (less, more) if automatic == "SAME_UPPER" else (more, less)
    if min((*begin, *end), default=0) < 0:
        raise Apart(f"{describe(node)} has negative padding; cut its input in front of it")
    window = Window(tuple(size), stride, dilation, begin, end)
    if node.attributes.get_int("ceil_mode", 0):
        rests = [
            pace != 1 and (known is None or (known + excess - 1) % pace != 0)
            for known, excess, pace in zip(sizes, window.excess, stride, strict=True)
        ]
        if any(rests):
            raise Apart(
                f"the last window of {describe(node)} may reach over the end (ceil_mode), and divides by fewer numbers"
                " there; turn it off, or export with a fixed size that is a multiple of the stride"
            )
    return window


def window_of_spread(node: ir.Node, size: Sequence[int], sizes: Sizes) -> Window:
    """Return the window of a ConvTranspose with ``size`` taps.

    Raises:
        Apart: its padding depends on the size of its input, or it adds places that no tap may reach.
    """
    ones = (1,) * len(sizes)
    stride, dilation, more = (
        tuple(node.attributes.get_ints(name, default))
        for name, default in (("strides", ones), ("dilations", ones), ("output_padding", (0,) * len(ones)))
    )
    pads = tuple(node.attributes.get_ints("pads", (0, 0) * len(ones)))
    end = tuple(width - added for width, added in zip(pads[len(ones) :], more, strict=True))
    by_size = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    if by_size or node.attributes.get_ints("output_shape") or min((*pads, *end)) < 0:
        raise Apart(
            f"the padding of {describe(node)} follows from sizes, or adds places: write it as pads, not below 0"
        )
    return Window(tuple(size), stride, dilation, pads[: len(ones)], end, spreads=True)


def window_of_pad(node: ir.Node, _: int, sizes: Sizes) -> Window | None:
    """Return the window of a Pad of zeros around spatial axes; None for any other."""
    widths, value, axes = constant64(optional(node, 1)), optional(node, 2), constant64(optional(node, 3))
    fill, rank = constant64(value), len(sizes) + 2
    if node.attributes.get_string("mode", "constant") != "constant" or widths is None or (widths < 0).any():
        return None
    if (value is not None and (fill is None or fill.any())) or (axes is None and optional(node, 3) is not None):
        return None
    named = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    before, after = widths[: len(named)], widths[len(named) :]
    return _window(rank, {axis: (int(b), int(a)) for axis, b, a in zip(named, before, after, strict=True)})


def window_of_cut(node: ir.Node, channels: int, sizes: Sizes) -> Window | None:
    """Return the window of a Slice that leaves out places at the ends of spatial axes; None for any other."""
    starts, ends, axes, steps = (constant64(optional(node, at)) for at in range(1, 5))
    missing = any(optional(node, at) is not None and found is None for at, found in ((3, axes), (4, steps)))
    if starts is None or ends is None or missing or (steps is not None and (steps != 1).any()):
        return None
    rank, left_out = len(sizes) + 2, dict[int, tuple[int, int]]()
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = index if axes is None else int(axes[index]) % rank
        found = _left_out(int(start), int(end), (None, channels, *sizes)[axis])
        if found is None:
            return None
        left_out[axis] = found
    return _window(rank, left_out)


def _left_out(start: int, end: int, size: int | None) -> tuple[int, int] | None:
    """Return how far a Slice widens an axis at both ends, in numbers not above 0; None where its size decides."""
    if size is not None:
        first, last, _ = slice(start, end).indices(size)
        return (-first, last - size) if first < last else None
    last = 0 if end >= _NO_END else end
    return (-start, last) if start >= 0 >= last and end != 0 else None


def _window(rank: int, widths: dict[int, tuple[int, int]]) -> Window | None:
    """Return the window that reads one place, of an input that is so much wider along some axes."""
    ends: list[Sequence[int]] = [[widths.get(axis, (0, 0))[side] for axis in range(rank)] for side in (0, 1)]
    if any((*ends[0][:2], *ends[1][:2])):
        return None
    ones = (1,) * (rank - 2)
    return Window(ones, ones, ones, tuple(ends[0][2:]), tuple(ends[1][2:]))
