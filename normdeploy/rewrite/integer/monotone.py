"""Monotone functions of one number, inverted exactly.

What stands between an accumulator and a quantizer is a chain of monotone functions with constants that are binary
fractions: maps a x + b, clamps, leaky slopes, quantizers within. "The quantizer's level is at least k"
is then a half-line of accumulators, and its end is found by going through the chain backwards in rational arithmetic::

    a x + b >= v    where  x >= (v - b) / a  (a > 0),  x <= (v - b) / a  (a < 0),  always or never (a = 0)
    clamp(x) >= v   always if the lower end is, never if the upper end is not, else where x >= v
    round(x) >= n   where  x >= n - 1/2, the end itself belonging to it where n is even (halves go to even)

Nothing is rounded but the constants, which are what they are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Where:
    """The numbers for which something holds.

    Args:
        above: those above the bound; otherwise the others.
        bound: None: all (``above``) or none.
        strict: the bound itself is not above it.
    """

    above: bool
    bound: Fraction | None = None
    strict: bool = False

    def holds(self, x: Fraction) -> bool:
        """Tell whether a number is one of them."""
        return self.above == (self.bound is None or x > self.bound or (x == self.bound and not self.strict))

    def first(self) -> int:
        """Return the smallest integer above the bound."""
        assert self.bound is not None
        return math.floor(self.bound) + 1 if self.strict else math.ceil(self.bound)


ALWAYS, NEVER = Where(True), Where(False)


@dataclass(frozen=True)
class Map:
    """a x + b, numbers of each channel or one for all."""

    scale: tuple[Fraction, ...]
    shift: tuple[Fraction, ...]

    def _of(self, channel: int) -> tuple[Fraction, Fraction]:
        a, b = self.scale, self.shift
        return a[channel if len(a) > 1 else 0], b[channel if len(b) > 1 else 0]

    def apply(self, x: Fraction, channel: int) -> Fraction:
        """Return a x + b."""
        a, b = self._of(channel)
        return a * x + b

    def before(self, where: Where, channel: int) -> Where:
        """Return the x for which a x + b is in a half-line."""
        if where.bound is None:
            return where
        a, b = self._of(channel)
        if a == 0:
            return ALWAYS if where.holds(b) else NEVER
        bound = (where.bound - b) / a
        return Where(where.above, bound, where.strict) if a > 0 else Where(not where.above, bound, not where.strict)


@dataclass(frozen=True)
class Clamp:
    """min(max(x, low), high); None for an end that is open."""

    low: Fraction | None = None
    high: Fraction | None = None

    def apply(self, x: Fraction, channel: int) -> Fraction:
        """Return the clamped number."""
        del channel
        x = x if self.low is None else max(x, self.low)
        return x if self.high is None else min(x, self.high)

    def before(self, where: Where, channel: int) -> Where:
        """Return the x that are clamped into a half-line."""
        del channel
        if where.bound is None:
            return where
        rising = Where(True, where.bound, where.strict)
        if self.high is not None and not rising.holds(self.high):
            return NEVER if where.above else ALWAYS
        if self.low is not None and rising.holds(self.low):
            return ALWAYS if where.above else NEVER
        return where


@dataclass(frozen=True)
class Leaky:
    """x where x >= 0, and slope x elsewhere; slope > 0, of each channel or one for all."""

    slope: tuple[Fraction, ...]

    def _of(self, channel: int) -> Fraction:
        return self.slope[channel if len(self.slope) > 1 else 0]

    def apply(self, x: Fraction, channel: int) -> Fraction:
        """Return the number."""
        return x if x >= 0 else self._of(channel) * x

    def before(self, where: Where, channel: int) -> Where:
        """Return the x whose image is in a half-line."""
        if where.bound is None or where.bound >= 0:
            return where
        return Where(where.above, where.bound / self._of(channel), where.strict)


@dataclass(frozen=True)
class Rounds:
    """A quantizer's integers: clamp(round(x / step) + zero, low, high), halves to even; step > 0.

    Source: ONNX, QuantizeLinear.
    """

    step: Fraction
    zero: int
    low: int
    high: int

    def level(self, x: Fraction) -> int:
        """Return the integer of a number."""
        return min(max(round(x / self.step) + self.zero, self.low), self.high)

    def at_least(self, level: int) -> Where:
        """Return the numbers whose integer is at least ``level``."""
        if level <= self.low:
            return ALWAYS
        if level > self.high:
            return NEVER
        n = level - self.zero
        return Where(True, (n - HALF) * self.step, n % 2 != 0)


@dataclass(frozen=True)
class Signs:
    """-1, 0 or 1: the sign of a number."""

    low: int = -1
    high: int = 1

    def level(self, x: Fraction) -> int:
        """Return the sign."""
        return (x > 0) - (x < 0)

    def at_least(self, level: int) -> Where:
        """Return the numbers whose sign is at least ``level``."""
        if level <= self.low:
            return ALWAYS
        return NEVER if level > self.high else Where(True, Fraction(0), level == 1)


@dataclass(frozen=True)
class Exceeds:
    """1 where x >= bound (x > bound if ``strict``), 0 elsewhere."""

    bound: Fraction
    strict: bool
    low: int = 0
    high: int = 1

    def level(self, x: Fraction) -> int:
        """Return 1 or 0."""
        return int(self.at_least(1).holds(x))

    def at_least(self, level: int) -> Where:
        """Return the numbers for which it is at least ``level``."""
        if level <= self.low:
            return ALWAYS
        return NEVER if level > self.high else Where(True, self.bound, self.strict)


Ending = Rounds | Signs | Exceeds


@dataclass(frozen=True)
class Level:
    """The integer that a quantizer within the chain makes, as a number."""

    quantizer: Ending

    def apply(self, x: Fraction, channel: int) -> Fraction:
        """Return the integer."""
        del channel
        return Fraction(self.quantizer.level(x))

    def before(self, where: Where, channel: int) -> Where:
        """Return the x whose integer is in a half-line."""
        del channel
        if where.bound is None:
            return where
        found = self.quantizer.at_least(where.first())
        return found if where.above else Where(not found.above, found.bound, found.strict)


Function = Map | Clamp | Leaky | Level


@dataclass(frozen=True)
class Chain:
    """An integer function of an integer: functions, then a quantizer.

    Args:
        functions: applied in this order. ending: what makes integers of numbers again.
    """

    functions: Sequence[Function]
    ending: Ending

    def level(self, accumulator: int, channel: int) -> int:
        """Return the integer that an accumulator becomes."""
        x = Fraction(accumulator)
        for function in self.functions:
            x = function.apply(x, channel)
        return self.ending.level(x)

    def at_least(self, level: int, channel: int) -> Where:
        """Return the accumulators that become ``level`` or more."""
        where = self.ending.at_least(level)
        for function in reversed(self.functions):
            where = function.before(where, channel)
        return where
