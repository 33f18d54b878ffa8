"""A step and a zero point in integer arithmetic: level = base + clamp(floor((m acc + c) / d), 0, K).

The change of step is the fraction m / d, one m for each channel, and c holds the zero point, the bias and what rounds.
It is the function of a row of thresholds on the accumulators from ``low`` to ``high`` where

    m x + c >= k d    for x = T[k], the first accumulator of level k,
    m x + c <  k d    for x = T[k] - 1, the last one below it.

Any two of these, one of each kind, bound m / d. The smallest d = 2^s is taken with an m between the bounds, in the
middle of them, and the middle of what is left for c: the numbers follow from the thresholds alone. Ties to even of
steps that are powers of two leave nothing between the bounds, and other functions of several slopes neither.

Source: B. Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference,
2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normdeploy.array_types import Ints
from normdeploy.rewrite.integer.thresholds import Thresholds

_FINEST = 46
"""The largest s."""


@dataclass(frozen=True)
class Multiplier:
    """The numbers m and c of each channel, d, and the bits of the integers that hold m acc + c."""

    factor: Ints
    addend: Ints
    divisor: int
    bits: int


@dataclass(frozen=True)
class _Row:
    """One channel: accumulators that reach a level, accumulators below one, the bounds of m / d."""

    reach: Ints
    reached: Ints
    miss: Ints
    missed: Ints
    least: float
    most: float

    def middle(self) -> float:
        return self.least * 2 if self.most == np.inf else (self.least + self.most) / 2

    def addend(self, factor: int, divisor: int) -> int | None:
        """Return a c for an m; None where there is none."""
        reach, miss = (
            zip(at.tolist(), levels.tolist(), strict=True)
            for at, levels in ((self.reach, self.reached), (self.miss, self.missed))
        )
        low = max((k * divisor - factor * x for x, k in reach), default=None)
        high = min((k * divisor - factor * x - 1 for x, k in miss), default=None)
        if low is None or high is None:
            return low if high is None else high
        return (low + high) // 2 if low <= high else None


def _row(found: Thresholds, channel: int, low: int, high: int) -> _Row:
    rises, levels = found.rises[channel], np.arange(1, found.count + 1)
    inside, above = rises <= high, rises > low
    reach, reached = np.maximum(rises[inside], low), levels[inside]
    miss, missed = np.minimum(rises[above], high + 1) - 1, levels[above]
    run = (miss[:, None] - reach[None]).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (missed[:, None] - reached[None]) / run
    least = float(slope[run < 0].max(initial=0.0))
    return _Row(reach, reached, miss, missed, max(least, 0.0), float(slope[run > 0].min(initial=np.inf)))


def multiplier_of(found: Thresholds) -> Multiplier | None:
    """Find a multiplier that is the thresholds' function on the whole range; None where there is none."""
    lows, highs = (end.tolist() for end in found.ends())
    rows = [_row(found, channel, low, high) for channel, (low, high) in enumerate(zip(lows, highs, strict=True))]
    for shift in range(_FINEST + 1):
        divisor = 1 << shift
        factors = [round(row.middle() * divisor) for row in rows]
        pairs = list(zip(factors, rows, strict=True))
        if not all(row.least * divisor <= factor <= row.most * divisor for factor, row in pairs):
            continue
        addends = [row.addend(factor, divisor) for factor, row in pairs]
        known = [addend for addend in addends if addend is not None]
        if len(known) < len(rows):
            continue
        largest = max(
            abs(factor * x) + abs(addend)
            for factor, addend, *ends in zip(factors, known, lows, highs, strict=True)
            for x in ends
        )
        if largest >= 1 << 62:
            return None
        factor = np.array(factors, dtype=np.int64) * found.direction
        return Multiplier(factor, np.array(known, dtype=np.int64), divisor, 32 if largest < 1 << 31 else 64)
    return None
