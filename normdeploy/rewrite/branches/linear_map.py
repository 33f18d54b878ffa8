"""Linear maps with constant weights, and their algebra: ``A @ B`` is A after B; ``A + B``, ``A - B`` read one input.

y = K * x + b, with a kernel K [O, I/g, taps...] over a :class:`.window.Window` and a bias b [O]. A convolution is one.
A scale and shift per channel is the kernel diag(s) of one tap, each channel a group of its own; an average over n taps
is 1/n; x itself is 1; zero padding is the identity over a padded window; a matrix on the last axis is a kernel without
spatial axes. With z = A x + a and y = B z + b::

    (B @ A)(x) = (B A) x + (b + B a)        (A + B)(x) = (A + B) x + (a + b)

kernels convolve and channels multiply; kernels are padded with zeros to the union of their windows. Channel groups
become the largest number of groups that both have in common. All in float64, on demand, a few output channels at a time
where the kernels of which they are made can be read so.

Source: lineax's operators compose and add in this way (P. Kidger, J. Rader, Lineax, 2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Floats
from normdeploy.graph import Parts, Reader
from normdeploy.rewrite.branches.window import Apart, Place, Sizes, Window

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class LinearMap:
    """y = K * x + b.

    Args:
        outs: O.
        ins: I.
        group: g; I/g inputs per output.
        window: taps, stride, dilation, padding.
        sizes: the spatial dimensions of x.
        open: loads what K is made of; returns how to compute K[start:stop], float64 [stop - start, I/g, taps...].
        bias: computes b as float64 [O]; None for zero.
        piecewise: whether some rows of K cost less than all of them.
        bound: computes no less than the root of the sum of squares of K's numbers; infinity where nobody knows.
    """

    outs: int
    ins: int
    group: int
    window: Window
    sizes: Sizes
    open: Callable[[], Reader]
    bias: Callable[[], Floats] | None = None
    piecewise: bool = True
    bound: Callable[[], float] = field(default=lambda: math.inf)

    @classmethod
    def diagonal(
        cls, scale: Floats, bias: Callable[[], Floats] | None = None, *, window: Window, sizes: Sizes
    ) -> LinearMap:
        """Return the map of each channel by itself, ``scale`` [C] at each tap of ``window``."""

        def rows(start: int, stop: int) -> Floats:
            column = scale[start:stop].reshape(-1, 1, *(1,) * window.rank)
            return np.array(np.broadcast_to(column, (stop - start, 1, *window.size)))

        channels = len(scale)

        def bound() -> float:
            return float(np.sqrt(np.square(scale).sum() * math.prod(window.size)))

        return cls(channels, channels, channels, window, sizes, lambda: rows, bias, bound=bound)

    @classmethod
    @functools.lru_cache(maxsize=256)
    def identity(cls, channels: int, sizes: Sizes) -> LinearMap:
        """Return x itself."""
        return cls.diagonal(np.broadcast_to(1.0, (channels,)), window=Window.point(len(sizes)), sizes=sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of K."""
        return (self.outs, self.ins // self.group, *self.window.size)

    @property
    def is_diagonal(self) -> bool:
        """Whether each output channel reads the input channel of the same number only."""
        return self.group == self.ins == self.outs

    @property
    def multiply_adds(self) -> int:
        """How many there are per element of y."""
        return math.prod(self.shape[1:])

    def kernel(self) -> Floats:
        """Return K as a whole."""
        return self.open()(0, self.outs)

    @property
    def parts(self) -> Parts | None:
        """K in pieces; None where it is computed as a whole only."""
        return Parts(0, self.open) if self.piecewise else None

    def shifted(self, shift: Callable[[], Floats]) -> LinearMap:
        """Return y + shift, one number per channel."""
        bias = self.bias
        return replace(self, bias=shift if bias is None else lambda: bias() + shift())

    def __neg__(self) -> LinearMap:
        """Return -y."""

        def load() -> Reader:
            read = self.open()
            return lambda start, stop: -read(start, stop)

        bias = self.bias
        return replace(self, open=load, bias=None if bias is None else lambda: -bias())

    def __sub__(self, other: LinearMap) -> LinearMap:
        """Return the difference of both results."""
        return self + -other

    def __add__(self, other: LinearMap) -> LinearMap:
        """Return the sum of both results.

        Raises:
            Apart: the results differ in size or in channels.
        """
        if (self.outs, self.ins) != (other.outs, other.ins):
            raise Apart(f"one makes {self.outs} channels of {self.ins}, the other {other.outs} of {other.ins}")
        window = self.window.union(other.window, self.sizes)
        group = math.gcd(self.group, other.group)
        width = self.ins // group
        places: list[tuple[LinearMap, Place]] = [(item, (..., *item.window.taps_in(window))) for item in (self, other)]
        whole = (self.outs, width, *window.size)
        places.sort(key=lambda pair: pair[0].shape != whole)

        def load() -> Reader:
            readers = [(item, place, item.open()) for item, place in places]

            def rows(start: int, stop: int) -> Floats:
                total: Floats | None = None
                for item, place, read in readers:
                    own = read(start, stop)
                    if total is None and item.shape == whole:
                        total = own  # its own array, which holds a number at every place
                        continue
                    if total is None:
                        total = np.zeros((stop - start, *whole[1:]))
                    if item.group == group:
                        total[place] += own
                        continue
                    at, columns = _columns(item, group, start, stop)
                    moved = total[(at, columns)]  # a copy: [rows, I/g of the item, taps]
                    moved[place] += own
                    total[(at, columns)] = moved
                assert total is not None
                return total

            return rows

        biases = [item.bias for item in (self, other) if item.bias is not None]
        return LinearMap(
            self.outs,
            self.ins,
            group,
            window,
            self.sizes,
            load,
            (lambda: np.sum([bias() for bias in biases], axis=0)) if biases else None,
            self.piecewise and other.piecewise,
            lambda: self.bound() + other.bound(),
        )

    def __matmul__(self, first: LinearMap) -> LinearMap:
        """Return this map of the result of ``first``.

        The zeros that this one reads around its input must be what ``first`` makes of zeros: along an axis with
        padding it has one tap and cuts nothing, and it has no bias. What spreads goes with maps of single places only,
        in front of it with one without a bias: more places would get that here than there.

        Raises:
            Apart: they are not, or the channels differ.
        """
        if self.ins != first.outs:
            raise Apart(f"one makes {first.outs} channels, the other reads {self.ins}")
        inner = first.window
        if self.window.spreads or inner.spreads:
            if not (inner if self.window.spreads else self.window).is_point or (self.window.spreads and first.bias):
                raise Apart(
                    "one spreads each place over several, and the other is no map of single places without bias"
                )
            return self.over(first)
        ones = (size == 1 and min(pads) >= 0 for size, *pads in zip(inner.size, inner.begin, inner.end, strict=True))
        pads = zip(self.window.begin, self.window.end, ones, strict=True)
        if any(max(begin, end) > 0 and not one for begin, end, one in pads):
            raise Apart("the second pads with zeros what the first does not make of zeros; pad in front of the first")
        if self.window.is_padded and first.bias is not None:
            raise Apart(
                "the second pads with zeros, where the first would give its bias; pad in front of the first, or leave "
                "out its bias"
            )
        return self.over(first)

    def over(self, first: LinearMap) -> LinearMap:
        """Return this map of the result of ``first`` as if nothing were padded: the kernel of ``self @ first``."""
        window, group = self.window @ first.window, math.gcd(self.group, first.group)
        return LinearMap(
            self.outs,
            first.ins,
            group,
            window,
            first.sizes,
            lambda: _composed(self, first, window, group),
            None if self.bias is None and first.bias is None else lambda: _bias_after(self, first),
            (self.is_diagonal or first.is_diagonal) and self.piecewise and first.piecewise,
            lambda: self.bound() * first.bound() * math.sqrt(math.prod(self.window.size)),
        )


def _columns(item: LinearMap, group: int, start: int, stop: int) -> tuple[Indices, Indices]:
    """Return at which rows and columns of a kernel with fewer groups an item's rows stand: [rows, 1], [rows, I/g]."""
    rows = np.arange(start, stop)
    own, wider = rows // (item.outs // item.group), rows // (item.outs // group)
    width = item.ins // item.group
    first = own * width - wider * (item.ins // group)
    return (rows - start)[:, None].astype(np.intp), (first[:, None] + np.arange(width)).astype(np.intp)


def _composed(second: LinearMap, first: LinearMap, window: Window, group: int) -> Reader:
    """Return how to read the kernel of ``second`` after ``first``."""
    inner, outer = first.open(), second.open()
    taps: list[tuple[Place, Place]] = [
        ((..., *tap), (..., *place)) for tap, place in second.window.taps_after(first.window, window)
    ]

    def rows(start: int, stop: int) -> Floats:
        a = inner(start, stop) if second.is_diagonal else inner(0, first.outs)
        if first.is_diagonal and not second.is_diagonal:
            a = _spread(a[:, 0], second)[start:stop]
        b = outer(start, stop)
        width = b.shape[1] if first.is_diagonal and not second.is_diagonal else a.shape[1]
        result = np.zeros((stop - start, width, *window.size))
        for tap, place in taps:
            matrix = b[tap]
            result[place] += matrix.reshape(*matrix.shape, *(1,) * window.rank) * a
        return result

    def whole(start: int, stop: int) -> Floats:
        a, b = _regrouped(first, inner, group), _regrouped(second, outer, group)
        columns = a.reshape(group, first.outs // group, -1)
        result = np.zeros((second.outs, first.ins // group, *window.size))
        for tap, place in taps:
            matrix = b[tap].reshape(group, second.outs // group, -1)
            result[place] += np.matmul(matrix, columns).reshape(second.outs, *a.shape[1:])
        return result[start:stop]

    return rows if first.is_diagonal or second.is_diagonal else whole


def _regrouped(item: LinearMap, read: Reader, group: int) -> Floats:
    """Return the kernel of a map written with fewer groups."""
    own = read(0, item.outs)
    if item.group == group:
        return own
    wide = np.zeros((item.outs, item.ins // group, *item.window.size))
    wide[_columns(item, group, 0, item.outs)] = own
    return wide


def _bias_after(second: LinearMap, first: LinearMap) -> Floats:
    """Return b + B a."""
    total = np.zeros(second.outs) if second.bias is None else second.bias()
    if first.bias is None:
        return total
    taps = tuple(range(2, 2 + second.window.rank))
    read = second.open()
    pieces = Parts(0, second.open).cuts(second.shape) if second.piecewise else iter([(0, second.outs)])
    sums = np.concatenate([read(start, stop).sum(axis=taps) for start, stop in pieces])
    inputs = first.bias().reshape(second.group, 1, -1)
    grouped = sums.reshape(second.group, second.outs // second.group, -1)
    return np.asarray(total + (grouped * inputs).sum(axis=2).reshape(-1))


def _spread(channels: Floats, item: LinearMap) -> Floats:
    """Spread arrays of each input channel [I, ...] over [O, I/g, ...]: (o, j) is channel j of the group of o."""
    grouped = channels.reshape(item.group, 1, item.ins // item.group, *channels.shape[1:])
    wide = np.broadcast_to(grouped, (item.group, item.outs // item.group, *grouped.shape[2:]))
    return wide.reshape(item.outs, *grouped.shape[2:])
