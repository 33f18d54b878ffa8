"""An integer value of the file as a function of one other, on whole intervals: where it is one number, and which.

Operators on integers are run on intervals (Moore 1966): what they return holds every result. Halved until the result is
one number, the intervals cover the whole range, so that what is said of them is said of every integer in it. A result
that its type may not hold is looked at in halves, and ends in :class:`Unclear`: nothing wraps around unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.verification.derivation.integers.interval_laws import LAWS
from normdeploy.verification.derivation.integers.spans import ENDS, Span, Unclear
from normdeploy.verification.derivation.integers.stepwise import Ints
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_MOST = 1 << 22
"""Intervals that are looked at for one value."""


@dataclass(frozen=True)
class Pieces:
    """Intervals that cover a range, on each of which a value is one number.

    Args:
        channel, low, high: the intervals. value: the number.
    """

    channel: Ints
    low: Ints
    high: Ints
    value: Ints


@dataclass(frozen=True)
class Leaf:
    """What a value is a function of.

    Args:
        value: integers of the file. dtype: their type.
        axis: of channels, from the end. rank: of the value.
        low, high: its range, per channel.
    """

    value: ir.Value
    dtype: ir.DataType
    axis: int
    rank: int
    low: Ints
    high: Ints


def between(side: Side, value: ir.Value, leaf: ir.Value) -> tuple[ir.Node, ...]:
    """Return the operators between a value and its leaf.

    Raises:
        Unclear: it depends on something else, or on what no law is known of.
    """
    found: dict[ir.Node, None] = {}
    queue = [value]
    for one in queue:
        if one is leaf or side.is_constant(one):
            continue
        node = one.producer()
        if node is None or kind(node) not in LAWS:
            raise Unclear(f"{one.name!r} is no function of {leaf.name!r} that is followed")
        if node not in found:
            found[node] = None
            queue += [operand for operand in inputs_of(node) if operand is not None]
    return tuple(found)


def leaves_of(side: Side, value: ir.Value, known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return the known values that a value is computed from by integer operators; [] where it is from others too."""
    found: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    queue = [value]
    for one in queue:
        if one is not value and known(one):
            found[one] = None
            continue
        node = one.producer()
        if side.is_constant(one) or one in seen:
            continue
        seen.add(one)
        if node is None or kind(node) not in LAWS:
            return []
        queue += [operand for operand in inputs_of(node) if operand is not None]
    return list(found)


def pieces(side: Side, value: ir.Value, leaf: Leaf) -> Pieces:
    """Cut the leaf's range into intervals on which a value of the file is one number.

    Raises:
        Unclear: an operator cannot be followed, or there are too many of them.
    """
    channel = np.arange(len(leaf.low), dtype=np.int64)
    low, high = leaf.low.astype(np.int64), leaf.high.astype(np.int64)
    done: list[tuple[Ints, ...]] = []
    count = 0
    while len(channel):
        count += len(channel)
        if count > _MOST:
            raise Unclear(f"it changes more often than {_MOST} intervals tell")
        run = _Run(side, leaf, channel, Span(low, high, leaf.dtype))
        found = run.of(value)
        single = (found.low == found.high) & ~run.outside
        if (~single & (low == high)).any():
            raise Unclear(run.reason or f"{value.name!r} is not one number for one {leaf.value.name!r}")
        done.append((channel[single], low[single], high[single], found.low[single]))
        channel, low, high = channel[~single], low[~single], high[~single]
        middle = (low + high) // 2
        channel = np.concatenate([channel, channel])
        low, high = np.concatenate([low, middle + 1]), np.concatenate([middle, high])
    return Pieces(*(np.concatenate(parts) for parts in zip(*done, strict=True)))


class _Run:
    """Runs operators on intervals.

    Args:
        side: the file. leaf: of the function. channel: of each interval. given: the leaf's.

    Attributes:
        outside: intervals on which an operator may leave a type or a table: a shorter one may show that it does not.
        reason: the operator, in a clause.
    """

    def __init__(self, side: Side, leaf: Leaf, channel: Ints, given: Span) -> None:
        self.side, self.leaf, self.channel = side, leaf, channel
        self._known: dict[ir.Value, Span] = {leaf.value: given}
        self.outside = np.zeros(channel.shape, bool)
        self.reason = ""

    def of(self, value: ir.Value) -> Span:
        """Return the intervals of a value."""
        if value not in self._known:
            found = self._constant(value)
            if found is None:
                node = value.producer()
                law = None if node is None else LAWS.get(kind(node))
                if node is None or law is None:
                    raise Unclear(f"{value.name!r} is no function of integers that is followed")
                found = law(self, node)
                text = f"{kind(node)} {node.name!r} may leave the range of {found.dtype.name.lower()}"
                low, high = self.kept(found.low, found.high, *ENDS[found.dtype], text)
                found = Span(low, high, found.dtype)
            self._known[value] = found
        return self._known[value]

    def kept(self, low: Ints, high: Ints, least: int, most: int, text: str) -> tuple[Ints, Ints]:
        """Return intervals cut to what is allowed, and note which of them were not within it."""
        outside = (low < least) | (high > most)
        if not outside.any():
            return low, high
        self.outside, self.reason = self.outside | outside, text
        return np.clip(low, least, most), np.clip(high, least, most)

    def _constant(self, value: ir.Value) -> Span | None:
        array = self.side.constant(value)
        if array is None:
            return None
        dtype = ir.DataType.from_numpy(array.dtype)
        if dtype not in ENDS:
            raise Unclear(f"{value.name!r} holds no integers")
        shape = (1,) * (self.leaf.rank - array.ndim) + array.shape
        wide = [axis - self.leaf.rank for axis, size in enumerate(shape) if size > 1]
        if array.ndim > self.leaf.rank or (wide and (wide != [self.leaf.axis] or array.size != len(self.leaf.low))):
            raise Unclear(f"{value.name!r} varies along another axis than the channels")
        flat = array.reshape(-1).astype(np.int64)
        numbers = np.broadcast_to(flat[0], self.channel.shape) if flat.size == 1 else flat[self.channel]
        return Span(numbers, numbers, dtype)

    def table(self, value: ir.Value | None) -> tuple[Ints, ir.DataType]:
        """Return a constant that is looked up in."""
        array = self.side.constant(value)
        if array is None or array.ndim != 1 or ir.DataType.from_numpy(array.dtype) not in ENDS:
            raise Unclear("a table is no list of integers")
        return array.astype(np.int64), ir.DataType.from_numpy(array.dtype)

    def operands(self, node: ir.Node) -> list[Span]:
        """Return the intervals of all that a node reads."""
        return [self.of(value) for value in inputs_of(node) if value is not None]
