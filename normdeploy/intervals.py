r"""95 % intervals of what is counted or measured on some rows: how far the number of other rows may be from it.

::

    share          Wilson's:  (p + z^2/2n  +-  z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)
    difference     of two shares on the same rows (one right where the other is wrong: b rows, the reverse: c rows):
                   (b - c)/(n + 2)  +-  z sqrt((b + c + 1) - (b - c)^2/(n + 2)) / (n + 2)
    rest           the middle 95 % of what samples of the rows give, drawn with replacement

Source: Wilson, Probable inference, 1927; Agresti and Min, Simple improved confidence intervals for comparing matched
proportions, 2005; Efron, Bootstrap methods, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Array, Floats

_Z = 1.959963984540054  # of the normal distribution, 97.5 % below
_DRAWS = 1000
_SEED = 0
_KEPT = 1 << 20
"""Counts up to which they are kept, 8 MB: drawing them takes twenty times as long as adding up by them."""

Rows = Floats


@dataclass(frozen=True)
class Interval:
    """A number and where the one of all rows there could be lies, in 95 of 100 cases."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return asdict(self)

    def words(self, form: str = ".3g") -> str:
        """Write "0.031 (0.028 to 0.034)"."""
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"


def share(count: int, of: int) -> Interval:
    """Return the share of ``count`` rows ``of`` all, with Wilson's interval."""
    p, z2 = count / of, _Z**2 / of
    middle, half = (p + z2 / 2) / (1 + z2), _Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of)) / (1 + z2)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half))


def share_difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> Interval:
    """Return the share of rows true in ``first`` less that in ``second``, of the same rows."""
    n, b, c = first.size, int((first & ~second).sum()), int((second & ~first).sum())
    middle = (b - c) / (n + 2)
    half = _Z * math.sqrt((b + c + 1) - (b - c) ** 2 / (n + 2)) / (n + 2)
    return Interval((b - c) / n, middle - half, middle + half)


def resampled(statistic: Callable[[Rows], Any], parts: Rows) -> Interval:
    """Return a statistic of rows with the interval that samples of the rows give.

    Args:
        statistic: of the sums over rows: (..., K) -> (...).
        parts: (N, K) what each row adds to the K sums.
    """
    counts = (_kept_draws if _DRAWS * len(parts) <= _KEPT else _draws)(len(parts))
    low, high = np.quantile(statistic(counts @ parts), [0.025, 0.975])
    return Interval(float(statistic(parts.sum(axis=0))), float(low), float(high))


def _draws(rows: int) -> npt.NDArray[np.int64]:
    """Return how often each sample has each row; of as many rows the samples are the same every time."""
    return np.random.default_rng(_SEED).multinomial(rows, np.full(rows, 1 / rows), size=_DRAWS)


_kept_draws = lru_cache(maxsize=2)(_draws)


def error_parts(outputs: Sequence[Array], truth: Sequence[Array]) -> Rows:
    """Return per row, for each output, the sums of squares of error and truth; unequal places of integers."""
    columns: list[Rows] = []
    for found, expected in zip(outputs, truth, strict=True):
        rows = (len(expected), -1)
        if expected.dtype.kind == "f":
            pair = (found.astype(np.float64) - expected) ** 2, expected.astype(np.float64) ** 2
        else:
            pair = (found != expected).astype(np.float64), np.ones(expected.shape)
        columns += [part.reshape(rows).sum(axis=1) for part in pair]
    return np.stack(columns, axis=1)


def largest_error(sums: Rows) -> Rows:
    """Return ||y - y64|| / ||y64||, the largest over the outputs, of sums of `error_parts`."""
    error, size = sums[..., ::2], sums[..., 1::2]
    return np.asarray(np.sqrt(error / np.where(size > 0, size, 1.0)).max(axis=-1))
