"""Adaptive pooling to sizes that do not divide the input's, and of inputs whose sizes are not known before.

Along an axis of ``n`` places, window ``i`` of ``k`` (``torch.nn.AdaptiveAvgPool2d``; ATen/native/AdaptivePooling.h)::

    start(i) = floor(i n / k)        end(i) = ceil((i + 1) n / k)
    maximum(i) = max(x[start(i)], ..., x[end(i) - 1])        average(i) = sum(...) / (end(i) - start(i))

Windows are gathered along one axis after the other, each filled up to the longest with its own last place, which
changes no maximum and is left out of sums. torch's exporter has no form for the maximum and none for an average in
three dimensions; its average in two holds the places of the example's size, whatever size comes
(docs/upstream/torch-onnx.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import ints, number, op

aten = torch.ops.aten


@dataclass(frozen=True)
class Windows:
    """The windows along an axis: as constants where its size is known, else counted when the network runs.

    Args:
        start: first places, [k].
        lengths: numbers of places, [k].
        places: all places, each window filled up with its last one, [k, longest].
        inside: whether a place is the window's own, [k, longest]; None where all are.
    """

    start: Any
    lengths: Any
    places: Any
    inside: Any

    @classmethod
    def along(cls, x: Any, axis: int, count: Any) -> Windows:
        """Return the windows along an axis. Args: count: how many, a number or a value."""
        size = x.shape[axis]
        if isinstance(size, int) and isinstance(count, int):
            return cls._known(size, count)
        zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
        size = op.Gather(op.Shape(x), op.Constant(value_int=axis), axis=0)
        steps = op.Constant(value_int=count) if isinstance(count, int) else op.Squeeze(count)
        before = op.Mul(op.Range(zero, steps, one), size)
        start = op.Div(before, steps)
        end = op.Div(op.Add(before, op.Sub(op.Add(size, steps), one)), steps)
        lengths = op.Sub(end, start)
        free = op.Add(op.Unsqueeze(start, ints(1)), op.Range(zero, op.ReduceMax(lengths, keepdims=0), one))
        last = op.Unsqueeze(op.Sub(end, one), ints(1))
        return cls(start, lengths, op.Min(free, last), op.LessOrEqual(free, last))

    @classmethod
    def _known(cls, size: int, count: int) -> Windows:
        before = np.arange(count) * size
        start, end = before // count, -(-(before + size) // count)
        free, last = start[:, None] + np.arange((end - start).max(initial=0)), end[:, None] - 1
        inside = None if (free <= last).all() else _constant(free <= last)
        return cls(_constant(start), _constant(end - start), _constant(np.minimum(free, last)), inside)


def _constant(numbers: np.ndarray) -> Any:
    return op.Constant(value=ir.tensor(numbers))


def _ahead(value: Any, axes: int) -> Any:
    """Return a value with so many axes of length one behind its own."""
    return op.Unsqueeze(value, ints(*range(-axes, 0))) if axes else value


def _average_along(x: Any, axis: int, count: Any) -> Any:
    windows, behind = Windows.along(x, axis, count), len(x.shape) - 1 - axis
    gathered = op.Gather(x, windows.places, axis=axis)
    if windows.inside is None:
        return op.ReduceMean(gathered, ints(axis + 1), keepdims=0)
    own = op.Where(_ahead(windows.inside, behind), gathered, number(0.0, x))
    total = op.ReduceSum(own, ints(axis + 1), keepdims=0)
    return op.Div(total, _ahead(op.Cast(windows.lengths, to=x.dtype), behind))


def _greatest_along(x: Any, axis: int, count: Any) -> Any:
    gathered = op.Gather(x, Windows.along(x, axis, count).places, axis=axis)
    return op.ReduceMax(gathered, ints(axis + 1), keepdims=0)


def _axis_by_axis(
    x: Any, counts: Sequence[Any], along: Callable[[Any, int, Any], Any], whole: Callable[..., Any]
) -> Any:
    """Pool the last axes: those of one window at once, then one after the other, the last one first.

    Args:
        along: pools along an axis, into so many windows. whole: the reduction.
    """
    pairs = list(zip(range(len(x.shape) - len(counts), len(x.shape)), counts, strict=True))
    at_once = [axis for axis, count in pairs if count == 1]
    if at_once:
        x = _shaped(whole(x, ints(*at_once), keepdims=1), x, dict.fromkeys(at_once, 1))
    for axis, count in reversed(pairs):
        if axis not in at_once:
            x = _shaped(along(x, axis, count), x, {axis: count if isinstance(count, int) else None})
    return x


def _shaped(result: Any, like: Any, lengths: dict[int, int | None]) -> Any:
    """Give a result another value's type, and its shape but for these axes."""
    shape = [lengths.get(axis, length) for axis, length in enumerate(like.shape)]
    result.dtype, result.shape = like.dtype, ir.Shape(shape)
    return result


def _places(x: Any, counts: Sequence[Any]) -> Any:
    """Return the first greatest place of each window, in the order of the last axes laid out as one.

    Along each axis the first greatest is kept with its place along the axes behind: of equal elements that is the first
    in this order, as torch's loops find it.
    """
    sizes, at = op.Shape(x), None
    for axis, count in zip(reversed(range(len(x.shape))), reversed(counts), strict=False):
        windows, behind = Windows.along(x, axis, count), len(x.shape) - 1 - axis
        gathered = op.Gather(x, windows.places, axis=axis)
        which = op.ArgMax(gathered, axis=axis + 1, keepdims=1)
        mine = op.Add(op.Squeeze(which, ints(axis + 1)), _ahead(windows.start, behind))
        if at is None:
            at = mine
        else:
            theirs = op.GatherElements(op.Gather(at, windows.places, axis=axis), which, axis=axis + 1)
            stride = op.ReduceProd(op.Slice(sizes, ints(axis + 1), ints(axis + 1 + behind)), keepdims=0)
            at = op.Add(op.Mul(mine, stride), op.Squeeze(theirs, ints(axis + 1)))
        x = _shaped(op.ReduceMax(gathered, ints(axis + 1), keepdims=0), x, {axis: None})
    return at


def _side_by_side(x: Any, counts: Sequence[Any]) -> list[int] | None:
    """Return the kernel of a plain pooling, where all sizes are known and divided into more than one window."""
    sizes = list(x.shape)[-len(counts) :]
    if all(k == 1 for k in counts) or any(
        not isinstance(n, int) or not isinstance(k, int) or n % k for n, k in zip(sizes, counts, strict=True)
    ):
        return None
    return [size // count for size, count in zip(sizes, counts, strict=True)]


def _plain(pool: Callable[..., Any], x: Any, kernel: list[int]) -> Any:
    if len(x.shape) > len(kernel) + 1:
        return pool(x, kernel_shape=kernel, strides=kernel)
    return op.Squeeze(pool(op.Unsqueeze(x, ints(0)), kernel_shape=kernel, strides=kernel), ints(0))


def average(self: Any, output_size: Sequence[Any]) -> Any:
    """Translate aten._adaptive_avg_pool2d and aten._adaptive_avg_pool3d."""
    kernel = _side_by_side(self, output_size)
    if kernel is not None:
        return _plain(op.AveragePool, self, kernel)
    return _axis_by_axis(self, output_size, _average_along, op.ReduceMean)


def maximum(self: Any, output_size: Sequence[Any]) -> tuple[Any, Any]:
    """Translate aten.adaptive_max_pool2d and aten.adaptive_max_pool3d; exporters leave out places nobody reads."""
    kernel, places = _side_by_side(self, output_size), _places(self, output_size)
    if kernel is not None:
        return _plain(lambda *args, **window: op.MaxPool(*args, **window)[0], self, kernel), places
    return _axis_by_axis(self, output_size, _greatest_along, op.ReduceMax), places


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._adaptive_avg_pool2d.default: average,
    aten._adaptive_avg_pool3d.default: average,
    aten.adaptive_max_pool2d.default: maximum,
    aten.adaptive_max_pool3d.default: maximum,
}
