"""The gauge of a value: x = s x' + t, where x' is what the rewritten graph computes in the place of x.

s and t are arrays of the value's rank, of size 1 along the axes where they do not vary. Each element, a *cell*, is an
unknown: s = S, t = a T with a number a. Operators tie the cells of their operands and results (:mod:`.rules`); the
identity s = 1, t = 0 solves every such system, so that ties never contradict each other before a map is asked to go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normdeploy.array_types import Array, Floats
from normdeploy.rewrite.gauge.equations.expression_rows import Ints

MOST_CELLS = 1 << 18
"""Cells of one value; where an operator would need more, its operands' cells are tied."""

Cells = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Gauge:
    """The cells of a value.

    Args:
        scale_of: unknown S of each cell; 0 stands for s = 1.
        shift_of: unknown T of each cell; 0 stands for t = 0.
        factor: a, so that t = a T.
    """

    scale_of: Ints
    shift_of: Ints
    factor: Floats

    @property
    def cells(self) -> Cells:
        """Size along each axis: 1, or the value's own."""
        return self.scale_of.shape

    @property
    def rank(self) -> int:
        """Rank of the value."""
        return self.scale_of.ndim

    def each(self, transform: Callable[[Array], Array]) -> Gauge:
        """Return the gauge with all arrays transformed alike."""
        return Gauge(transform(self.scale_of), transform(self.shift_of), transform(self.factor))

    def picked(self, identifiers: Ints) -> Gauge:
        """Return the cells with these identifiers: positions in the flattened gauge."""
        return self.each(lambda array: array.reshape(-1)[identifiers])

    def spread(self, cells: Sequence[int]) -> Gauge:
        """Return the gauge broadcast to more cells."""
        if tuple(cells) == self.cells:
            return self
        return self.each(lambda array: np.broadcast_to(array, tuple(cells)))

    def wider(self, rank: int) -> Gauge:
        """Give the gauge leading axes of size 1, as broadcasting does."""
        if rank == self.rank:
            return self
        return self.each(lambda array: array.reshape((1,) * (rank - self.rank) + array.shape))

    def first(self, axes: Sequence[int]) -> Gauge:
        """Return the first cell along axes; the gauge itself where it has no more."""
        along = {axis % self.rank for axis in axes if self.cells[axis % self.rank] > 1}
        if not along:
            return self
        index = tuple(slice(0, 1) if axis in along else slice(None) for axis in range(self.rank))
        return self.each(lambda array: array[index])

    def varies(self, axis: int, *, scale: bool = True) -> bool:
        """Tell whether cells along an axis differ, in their shifts alone or also in what scales them.

        A factor of no shift tells nothing; of x beside -x the unknowns are the same.
        """
        first = self.first([axis])
        return first is not self and bool(
            (scale and (first.scale_of != self.scale_of).any())
            or (first.shift_of != self.shift_of).any()
            or ((first.factor != self.factor) & (self.shift_of != 0)).any()
        )

    def times(self, factor: float) -> Gauge:
        """Return the gauge with its shift times a number."""
        return replace(self, factor=self.factor * factor)

    @property
    def unshifted(self) -> Gauge:
        """The gauge with t = 0."""
        return replace(self, shift_of=np.zeros_like(self.shift_of), factor=np.zeros_like(self.factor))

    @property
    def unscaled(self) -> Gauge:
        """The gauge with s = 1."""
        return replace(self, scale_of=np.zeros_like(self.scale_of))


def fixed(rank: int) -> Gauge:
    """Return s = 1, t = 0."""
    nought = np.zeros((1,) * rank, np.int64)
    return Gauge(nought, nought, nought.astype(np.float64))


def joined(gauges: Sequence[Gauge]) -> Gauge:
    """Return the cells of gauges, one behind the other, along one axis."""
    return Gauge(
        np.concatenate([gauge.scale_of.reshape(-1) for gauge in gauges]),
        np.concatenate([gauge.shift_of.reshape(-1) for gauge in gauges]),
        np.concatenate([gauge.factor.reshape(-1) for gauge in gauges]),
    )


def common(*gauges: Gauge) -> Cells:
    """Return the cells to which gauges broadcast."""
    return np.broadcast_shapes(*(gauge.cells for gauge in gauges))
