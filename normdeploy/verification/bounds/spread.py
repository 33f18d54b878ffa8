"""S of one input family, measured when something is first held against it.

The criterion's bounds grow with S. What stays within them at S = 0, by eager's own error alone, stays within them
whatever S is, so the runs with noise are made only for an output that does not, one after the other until it does, and
for mutants, which have to exceed the whole bound.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from normdeploy.array_types import Array

Measure = Callable[[int, int], Iterator[Sequence[Array]]]
"""Makes runs, given their number and seed; yields with each what S is at least, per output, whatever those that are
left show, and with the last what it is."""

_MORE_RUNS = 16

_LUCK = 2.0
"""How many times what the first runs let expect of S further ones hardly show."""


class Spread:
    """The pointwise RMS deviation of runs with noise, per output, zeros where that is no float.

    Args:
        shapes: of the outputs; where a run has another (one that depends on the data), S says nothing.
        measure: makes the runs. runs: how many at first; 0 where more of them say nothing new. seed: of the noise.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], measure: Measure, *, runs: int = 0, seed: int = 0) -> None:
        self._shapes, self._measure, self._runs, self._seed = shapes, measure, runs, seed
        self._running: Iterator[Sequence[Array]] | None = None
        self._least = [np.zeros(n) for n in shapes]
        self._found: list[Array] | None = None
        self._admitted: list[Array | None] = [None] * len(self._shapes)
        self._made = 0
        self._refined = False

    @classmethod
    def of(cls, values: Sequence[Array]) -> Spread:
        """Return one that is known."""
        known = cls([np.shape(s) for s in values], lambda _, __: iter([values]))
        known._found = list(values)
        return known

    @property
    def measured(self) -> bool:
        """True once all runs were made."""
        return self._found is not None

    @property
    def least(self) -> list[Array]:
        """S per output as far as the runs made so far show it; 0 before the first."""
        found = self._least if self._found is None else self._found
        return [s if a is None else np.maximum(s, a) for s, a in zip(found, self._admitted, strict=True)]

    def more(self) -> bool:
        """Make one more run; False where all were made."""
        if self._found is not None:
            return False
        self._running = self._measure(self._runs, self._seed) if self._running is None else self._running
        found = next(self._running, None)
        if found is None:
            self._found = self._least
            return False
        self._made += 1
        self._least = [s if s.shape == n else np.zeros(n) for s, n in zip(found, self._shapes, strict=True)]
        return True

    def hardly_reaches(self, ratio: float) -> bool:
        """Tell by the runs made so far whether those that are left hardly make S as many times as large.

        Args:
            ratio: of an error to the bound by what S is known to be at least.
        """
        return bool(self._made) and ratio > _LUCK * math.sqrt(self._runs / self._made)

    def settle(self) -> None:
        """Take for S what the runs made so far let expect of it; no others are made but to refine it."""
        if self._found is None and self._made:
            self._least = [s * math.sqrt(self._runs / self._made) for s in self._least]
            self._found = self._least

    @property
    def values(self) -> list[Array]:
        """S per output; the runs that are left are made when it is first asked for."""
        while self.more():
            pass
        return self.least

    def admit(self, output: int, error: Array) -> None:
        """Count a run that is known to be rounding alone: S is no smaller than its error, element by element.

        Args:
            output: which. error: the run's, absolute; what is not finite in it says nothing.
        """
        if error.shape == self._shapes[output]:
            known = self._admitted[output]
            mine = np.where(np.isfinite(error), error, 0.0)
            self._admitted[output] = mine if known is None else np.maximum(known, mine)

    def refine(self) -> bool:
        """Measure S with more runs, once; False where that was done before or would say nothing new."""
        if self._refined or not self._runs:
            return False
        self._refined = True
        while self.more():
            pass
        before = self._found or []
        found = deque(self._measure(_MORE_RUNS, self._seed + 500_009), maxlen=1)
        total = self._runs + _MORE_RUNS
        for i, more in enumerate(found[-1] if found else ()):
            if more.shape == before[i].shape:
                square = self._runs * np.square(before[i]) + _MORE_RUNS * np.square(more)
                before[i] = np.sqrt(square / total)
        return True
