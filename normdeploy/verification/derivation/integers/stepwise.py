"""A function of one number, step by step: in float64, and in fractions where float64 does not decide.

Steps are y = x p / q + c, clamps, slopes, roundings (halves to even), signs and comparisons. Each rises, or falls where
p / q < 0, so that every composition of them is monotone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Floats
from normdeploy.verification.derivation.gauges import NOISE

Ints = npt.NDArray[np.int64]
Places = list[tuple[Fraction, Fraction]]
"""What a number may be: a value, and how far off constants that are not exact may have moved it."""


@dataclass(frozen=True)
class Scaled:
    """y = x times / by + add, one number each or one per channel.

    Args:
        exact: the constants are what is meant, not float64's rounding of it.
    """

    times: Floats
    by: Floats
    add: Floats
    exact: bool = True

    @property
    def rises(self) -> bool:
        """No channel falls."""
        return bool((self.times * np.sign(self.by) >= 0).all())

    def floats(self, x: Floats, off: Floats, channel: Ints) -> tuple[Floats, Floats]:
        """Return y, and how far it may be off."""
        times, by, add = (at(part, channel) for part in (self.times, self.by, self.add))
        product = x * times / by
        return product + add, off * np.abs(times / by) + NOISE * (np.abs(product) + np.abs(add))

    def exactly(self, found: Places, channel: int) -> Places:
        """Return what y may be."""
        times, by, add = (Fraction(float(at(part, channel))) for part in (self.times, self.by, self.add))
        noise, ratio = Fraction(0) if self.exact else Fraction(NOISE), times / by
        size, wide = abs(ratio), abs(add)
        products = [(x * ratio, off * size if off else off) for x, off in found]
        return [(x + add, off + noise * (abs(x) + wide) if noise else off) for x, off in products]


@dataclass(frozen=True)
class Cut:
    """min(max(x, low), high)."""

    low: float | None
    high: float | None

    def floats(self, x: Floats, off: Floats, channel: Ints) -> tuple[Floats, Floats]:
        """Return y, and how far it may be off."""
        del channel
        return np.clip(x, -np.inf if self.low is None else self.low, np.inf if self.high is None else self.high), off

    def exactly(self, found: Places, channel: int) -> Places:
        """Return what y may be."""
        del channel
        ends = [None if end is None else Fraction(end) for end in (self.low, self.high)]
        cut = [(x if ends[0] is None else max(x, ends[0]), off) for x, off in found]
        return [(x if ends[1] is None else min(x, ends[1]), off) for x, off in cut]


@dataclass(frozen=True)
class Sloped:
    """x above 0, alpha x below; alpha is not below 0."""

    alpha: float

    def floats(self, x: Floats, off: Floats, channel: Ints) -> tuple[Floats, Floats]:
        """Return y, and how far it may be off."""
        del channel
        return np.where(x >= 0, x, self.alpha * x), off * max(1.0, self.alpha)

    def exactly(self, found: Places, channel: int) -> Places:
        """Return what y may be."""
        del channel
        slope = Fraction(self.alpha)
        return [(x if x >= 0 else slope * x, off * max(Fraction(1), slope)) for x, off in found]


@dataclass(frozen=True)
class Decided:
    """A function that has steps: the integer next to x (halves to even), x's sign, or whether x reaches a bound.

    Args:
        kind: "round", "sign", "at least" or "above". bound: of the comparisons, which are 0 or 1.
    """

    kind: str
    bound: float = 0.0

    def level(self, x: Fraction) -> Fraction:
        """Return the value at x."""
        if self.kind == "round":
            return Fraction(round(x))  # Python rounds fractions half to even
        if self.kind == "sign":
            return Fraction((x > 0) - (x < 0))
        bound = Fraction(self.bound)
        return Fraction(x >= bound if self.kind == "at least" else x > bound)

    def jumps(self, x: Fraction) -> bool:
        """Tell whether the value changes at x itself."""
        return x % 1 == Fraction(1, 2) if self.kind == "round" else x == Fraction(self.bound)

    def exactly(self, found: Places, channel: int) -> Places:
        """Return what y may be: one value, unless what is not exact reaches across a jump."""
        del channel
        values: set[Fraction] = set()
        for x, off in found:
            ends = (x,) if self.jumps(x) else (x - off, x + off)
            values.update(self.level(end) for end in ends)
        return [(value, Fraction(0)) for value in sorted(values)]

    def floats(self, x: Floats, off: Floats, channel: Ints) -> tuple[Floats, Floats]:
        """Return y, which is not to be believed where :meth:`close` says so, and 0."""
        del channel
        if self.kind == "round":
            return np.rint(x), np.zeros_like(off)
        if self.kind == "sign":
            return np.sign(x), np.zeros_like(off)
        return (x >= self.bound if self.kind == "at least" else x > self.bound).astype(np.float64), np.zeros_like(off)

    def close(self, x: Floats, off: Floats) -> npt.NDArray[np.bool_]:
        """Tell where x is so near to a jump that float64 does not decide."""
        distance = np.abs(x - np.floor(x) - 0.5) if self.kind == "round" else np.abs(x - self.bound)
        return np.asarray(~np.isfinite(x) | (distance <= off))


Step = Scaled | Cut | Sloped | Decided


def at(part: Floats, channel: Ints | int) -> Floats:
    """Return a number, or those of channels."""
    flat = np.asarray(part, np.float64).reshape(-1)
    return np.asarray(flat[0] if flat.size == 1 else flat[channel])


def scaled(
    times: Floats | float = 1.0, by: Floats | float = 1.0, add: Floats | float = 0.0, *, exact: bool = True
) -> Scaled:
    """Return y = x times / by + add."""
    first, second, third = (np.asarray(part, np.float64).reshape(-1) for part in (times, by, add))
    return Scaled(first, second, third, exact)


def levels(steps: Iterable[Step], x: Ints, channel: Ints) -> tuple[Ints, Ints]:
    """Return the least and the largest integer that steps ending on one may make of integers.

    They are one wherever all constants are exact, and elsewhere unless a value lies within float64's noise of a jump.

    Args:
        x: the integers. channel: of each.
    """
    steps = list(steps)
    value, off, close = x.astype(np.float64), np.zeros(x.shape), np.zeros(x.shape, bool)
    for step in steps:
        if isinstance(step, Decided):
            close |= step.close(value, off)
        value, off = step.floats(value, off, channel)
    low = np.where(close, 0, np.nan_to_num(np.rint(value))).astype(np.int64)
    high = low.copy()
    for place in np.flatnonzero(close):
        found: Places = [(Fraction(int(x[place])), Fraction(0))]
        for step in steps:
            found = step.exactly(found, int(channel[place]))
        low[place], high[place] = int(min(found)[0]), int(max(found)[0])
    return low, high
