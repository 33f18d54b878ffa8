"""A step and a zero point in integer arithmetic: level = base + clamp(floor((m acc + c) / d), 0, K).

The change of step is the fraction m / d, one m for each channel, and c holds the zero point, the bias and what rounds.
It is the function of a row of thresholds where, for each of them within the accumulator's range,

    m T + c >= k d    and    m (T - 1) + c < k d,

two bounds of c per threshold. An m next to the slope times d is tried, and a c taken from the middle of what is left.
Ties to even of steps that are powers of two leave nothing: these are thresholds with no slope.

Source: B. Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference,
2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from normdeploy.rewrite.integer.thresholds import Ints, Thresholds


@dataclass(frozen=True)
class Multiplier:
    """The numbers m and c of each channel, d, and the bits of the integers that hold m acc + c."""

    factor: Ints
    addend: Ints
    divisor: int
    bits: int


def multiplier_of(found: Thresholds, slopes: Sequence[Fraction]) -> Multiplier | None:
    """Find a multiplier that is the thresholds' function on the whole range; None where there is none.

    Args:
        found: the thresholds. slopes: levels per unit of the accumulator, of each channel.
    """
    low, high = found.ends()
    largest = int(max(np.abs(low).max(), np.abs(high).max(), 1))
    steepest = max((abs(slope) for slope in slopes), default=Fraction(0))
    for bits in (32, 64):
        room = (1 << (bits - 3)) // largest
        shift = 0
        while steepest * (1 << (shift + 1)) < room and (found.count + 1) << (shift + 1) < 1 << (bits - 3) and shift < 46:
            shift += 1
        rows = [_row(found, channel, abs(slope), 1 << shift) for channel, slope in enumerate(slopes)]
        if all(row is not None for row in rows):
            factor, addend = np.array(rows, dtype=np.int64).T
            return Multiplier(factor * found.direction, addend, 1 << shift, bits)
    return None


def _row(found: Thresholds, channel: int, slope: Fraction, divisor: int) -> tuple[int, int] | None:
    """Return m and c of a channel, m of the accumulator with its direction."""
    ends = found.ends()
    low, high = int(ends[0][channel]), int(ends[1][channel])
    factor = round(slope * divisor)
    least, most = -factor * high - divisor, (found.count + 1) * divisor - factor * low  # beyond, nothing changes
    for k, at in enumerate(found.rises[channel].tolist(), start=1):
        if at <= high:
            least = max(least, k * divisor - factor * max(at, low))
        if at > low:
            most = min(most, k * divisor - factor * (min(at, high + 1) - 1) - 1)
    return (factor, (least + most) // 2) if least <= most else None
