"""Thresholds: an integer function of an accumulator as the numbers at which its level rises.

    level(acc) = base + #{k : direction acc >= T[k]},   k = 1 .. K

with one row of thresholds per channel, on all integers of the accumulator's range. A threshold below the range always
holds, one above it never does. That this is the function is shown where it rises: a monotone function of integers is
known from the places at which it changes, and there both are asked, at T and at T - 1, in rational arithmetic.

Source: Y. Umuroglu, M. Jahre, Streamlined Deployment for Quantized Neural Networks, 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Ints
from normdeploy.errors import RewriteError
from normdeploy.rewrite.integer.monotone import Chain


@dataclass(frozen=True)
class Thresholds:
    """Where the level of each channel rises.

    Args:
        base: the lowest level.
        rises: [channels, K], rising along K; of ``direction`` times the accumulator.
        direction: [channels], 1 or -1.
        low, high: [channels], the accumulator's range.
    """

    base: int
    rises: Ints
    direction: Ints
    low: Ints
    high: Ints

    @property
    def count(self) -> int:
        """How many thresholds a channel has."""
        return int(self.rises.shape[1])

    @property
    def top(self) -> int:
        """The highest level."""
        return self.base + self.count

    def ends(self) -> tuple[Ints, Ints]:
        """Return the range of ``direction`` times the accumulator, per channel."""
        rising = self.direction > 0
        return np.where(rising, self.low, -self.high), np.where(rising, self.high, -self.low)

    def turned(self, channels: npt.NDArray[np.bool_]) -> Thresholds:
        """Return the thresholds of accumulators whose sign was changed in some channels."""
        low, high = np.where(channels, -self.high, self.low), np.where(channels, -self.low, self.high)
        return Thresholds(self.base, self.rises, np.where(channels, -self.direction, self.direction), low, high)

    def levels(self, accumulators: Ints) -> Ints:
        """Return the levels of accumulators [points, channels]."""
        signed = accumulators * self.direction
        return np.asarray(self.base + (signed[:, :, None] >= self.rises[None]).sum(axis=2), dtype=np.int64)


def thresholds_of(chain: Chain, low: Ints, high: Ints) -> Thresholds:
    """Find the thresholds of a chain for accumulators from ``low`` to ``high`` of each channel.

    Raises:
        RewriteError: they are not the chain's function (a bug of ours).
    """
    channels = len(low)
    ends = [sorted((chain.level(int(low[c]), c), chain.level(int(high[c]), c))) for c in range(channels)]
    base, top = min(end[0] for end in ends), max(end[1] for end in ends)
    top = max(top, base + 1)
    rises = np.zeros((channels, top - base), np.int64)
    direction = np.ones(channels, np.int64)
    for c in range(channels):
        found = [chain.at_least(level, c) for level in range(base + 1, top + 1)]
        # a complement of all or of nothing has no direction
        falls = any(where.bound is not None and not where.above for where in found)
        direction[c] = -1 if falls else 1
        first, last = (-int(high[c]), -int(low[c])) if falls else (int(low[c]), int(high[c]))
        for k, where in enumerate(found):
            if where.bound is None:
                rises[c, k] = first if where.above else last + 1
            else:
                at = where.first()
                rises[c, k] = min(max(1 - at if falls else at, first), last + 1)
    result = Thresholds(base, rises, direction, low, high)
    prove(chain, result)
    return result


def prove(chain: Chain, found: Thresholds) -> None:
    """Ask both where the level changes, and at the ends of the range."""
    for channel, points in enumerate(breakpoints(found)):
        levels = found.base + (points[:, None] * found.direction[channel] >= found.rises[channel]).sum(axis=1)
        for point, level in zip(points, levels, strict=True):
            expected = chain.level(int(point), channel)
            if expected != level:
                text = f"accumulator {point} of channel {channel} is level {level}; expected {expected}"
                raise RewriteError("thresholds", "a quantizer", text)


def breakpoints(found: Thresholds) -> list[Ints]:
    """Return, per channel, the ends of the range and the accumulators on both sides of each threshold within it."""
    points = []
    for channel in range(len(found.low)):
        low, high = int(found.low[channel]), int(found.high[channel])
        at = np.concatenate([found.rises[channel], found.rises[channel] - 1]) * found.direction[channel]
        at = at[(at >= low) & (at <= high)]
        points.append(np.unique(np.concatenate([at, np.array([low, high])])))
    return points
