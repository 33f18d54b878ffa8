"""Solve for the epsilon of a normalization, and for its place inside or outside the root.

1 / phi = scale (x - m) / z is sqrt(v + e) or sqrt(v) + e, where z is the odd part of the result. In units of sqrt(v) it
is 1 at large inputs and grows where v falls below e. The input scale where it is 2 is bracketed first; blocks are
independent of each other, so each gets a scale of its own and one evaluation answers for as many scales as there are
blocks. Around that scale, 1 / phi^2 - v (inside) or 1 / phi - sqrt(v) (outside) is constant and is e.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from normdeploy.array_types import Floats
from normdeploy.rewrite.recognise.hypothesis import Norm

_SMALLEST, _LARGEST = -20.0, 3.0  # decades of input scale between which an epsilon is looked for
_BRACKET = 0.25  # decades
_NONE = 1e-6  # excess at the smallest scale below which there is no epsilon
_UNEVEN = 1e-6  # relative; the estimates of one epsilon agree far better than this


class _Response:
    """1 / phi of a function's blocks at chosen input scales.

    Args:
        f: the function.
        p: the probe pattern.
        plain: the normalization at large inputs, with its scale of full shape.
    """

    def __init__(self, f: Callable[[Floats], Floats], p: Floats, plain: Norm) -> None:
        self._f, self._shape = f, p.shape
        self._axes = plain.blocks.split_axes()
        inner_shape = plain.blocks.split_shape(p.shape)
        self._inner = p.reshape(inner_shape)
        centred = self._inner - self._inner.mean(axis=self._axes, keepdims=True) if plain.centred else self._inner
        self._deviation = np.sqrt(np.square(centred).mean(axis=self._axes, keepdims=True))
        self._weighted = plain.scale.reshape(inner_shape) * centred
        self._power = np.square(self._weighted).sum(axis=self._axes, keepdims=True)
        self.alive = self._power > 0
        self.count = int(self.alive.sum())

    def at(self, decades: Floats) -> tuple[Floats, Floats]:
        """Return standard deviations, and 1 / phi in units of them; inf where the shift swamps the odd part.

        Args:
            decades: logarithms of input scales, any number; they are dealt out to the blocks, a round at a time.
        """
        spreads: list[Floats] = []
        ratios: list[Floats] = []
        for start in range(0, len(decades), self.count):
            dealt = np.resize(decades[start : start + self.count], self.count)
            scales = np.ones(self.alive.shape)
            scales[self.alive] = 10.0**dealt
            x = (scales * self._inner).reshape(self._shape)
            odd = ((self._f(x) - self._f(-x)) / 2).reshape(self._inner.shape)
            phi = (odd * self._weighted).sum(axis=self._axes, keepdims=True)[self.alive] / self._power[self.alive]
            phi = np.where(phi > 0, phi, np.where(np.isnan(phi), np.nan, 0.0))
            with np.errstate(divide="ignore"):
                ratio = 1.0 / phi / self._deviation[self.alive]
            kept = min(self.count, len(decades) - start) if len(decades) > self.count else self.count
            spreads.append((scales * self._deviation)[self.alive][:kept])
            ratios.append(ratio[:kept])
        return np.concatenate(spreads), np.concatenate(ratios)


def find_epsilon(f: Callable[[Floats], Floats], p: Floats, plain: Norm) -> tuple[bool, float] | None:
    """Return whether epsilon is outside the root, and its value; None where neither form holds.

    Args:
        f: the function.
        p: values of either sign and magnitude 1 to 2, none near its block's mean.
        plain: the normalization that ``f`` is at large inputs, with its scale of full shape.
    """
    response = _Response(f, p, plain)
    if response.count == 0:
        return None
    low, high = _SMALLEST, _LARGEST
    _, ends = response.at(np.array([low, high]))
    if np.isnan(ends).any() or ends[1] > 2.0:
        return None
    if ends[0] - 1.0 < _NONE:
        return False, 0.0
    while high - low > _BRACKET:
        inside = np.linspace(low, high, min(response.count, 96) + 2)[1:-1]
        _, ratios = response.at(inside)
        above = np.flatnonzero(ratios[: len(inside)] > 2.0)
        grid = [low, *inside, high]
        at = int(above[-1]) + 1 if len(above) else 0
        low, high = grid[at], grid[at + 1]
    spread, ratio = response.at(low + np.array([-0.5, 0.0, 0.5]))
    if not np.isfinite(ratio).all():
        return None
    best: tuple[float, bool, float] | None = None
    for outside, estimates in ((False, np.square(spread) * (np.square(ratio) - 1.0)), (True, spread * (ratio - 1.0))):
        middle = float(np.median(estimates))
        if middle > 0:
            uneven = float(np.abs(estimates - middle).max()) / middle
            if best is None or uneven < best[0]:
                best = (uneven, outside, middle)
    return (best[1], best[2]) if best is not None and best[0] <= _UNEVEN else None
