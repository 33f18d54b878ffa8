"""A large constant one piece at a time: read in float64, and transformed while the piece is in the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from normdeploy.array_types import Array, Floats

BLOCK = 1 << 17
"""Elements of a constant that are held in float64 at a time where it is computed piece by piece (1 MiB)."""

SQUARE_LOST = 1e-30
"""More than the squares of all numbers together of which float32 makes 0."""

Reader = Callable[[int, int], Floats]
"""(start, stop) -> that piece of a constant, unrounded, as an array of its own."""

Step = tuple[np.ufunc, Floats]
"""An elementwise operation with an array that broadcasts against the value."""


@dataclass(frozen=True)
class Parts:
    """A constant's float64 value, cut along one axis.

    Args:
        axis: where it is cut: the outermost in memory, so that a piece is read in one go.
        open: loads what the value is made of, in its stored dtype, and returns how to read ``value[start:stop]`` along
            the axis; nothing stays loaded once that is dropped.
        origin: what the value was made of by ``steps``; values of one origin can be read together.
        steps: what was done to the origin, piece by piece: ufuncs with their second operand.
        base: the parts of what the last step was done to.
        stored: as ``open``, but reads the numbers in their stored dtype; None where the value is none that is stored.
    """

    axis: int
    open: Callable[[], Reader]
    origin: object = field(default_factory=object)
    steps: tuple[Step, ...] = ()
    base: Parts | None = None
    stored: Callable[[], Callable[[int, int], Array]] | None = None

    def cuts(self, shape: tuple[int, ...], step: int = 1) -> Iterator[tuple[int, int]]:
        """Return where to cut a value of ``shape`` into pieces of about :data:`BLOCK` elements.

        Args:
            shape: the whole value's.
            step: pieces start at multiples of this number.
        """
        length = shape[self.axis]
        slab = math.prod(shape) // max(length, 1)
        size = max(BLOCK // max(slab, 1) // step, 1) * step
        return ((start, min(start + size, length)) for start in range(0, length, size))

    def pieces(self, shape: tuple[int, ...], step: int = 1) -> Iterator[tuple[int, int, Floats]]:
        """Return start, stop and value of each piece of a value of ``shape``, one at a time."""
        read = self.open()
        return ((start, stop, read(start, stop)) for start, stop in self.cuts(shape, step))

    def place(self, start: int, stop: int) -> tuple[slice, ...]:
        """Return the index of a piece in the whole."""
        return (*(slice(None),) * self.axis, slice(start, stop))

    def scaled(self, factor: Floats) -> Parts:
        """Return the parts of the value times ``factor``, which has its rank and broadcasts against it."""
        return self._then(np.multiply, factor)

    def shifted(self, addend: Floats) -> Parts:
        """Return the parts of the value plus ``addend``, which has its rank and broadcasts against it."""
        return self._then(np.add, addend)

    def transposed(self, perm: Sequence[int]) -> Parts:
        """Return the parts of the value with its axes permuted as ``np.transpose`` does."""

        def load() -> Reader:
            read = self.open()
            return lambda start, stop: read(start, stop).transpose(perm)

        def load_stored() -> Callable[[int, int], Array]:
            assert self.stored is not None
            read = self.stored()
            return lambda start, stop: read(start, stop).transpose(perm)

        return Parts(list(perm).index(self.axis), load, stored=None if self.stored is None else load_stored)

    def unscaled(self, axes: Collection[int]) -> tuple[Parts, dict[int, Floats]]:
        """Return the parts of what the value is a multiple of, and by which factors.

        Args:
            axes: factors that vary along one of these alone are taken off, as long as they came last.

        Returns:
            the parts, and a vector of factors for each axis that has some.
        """
        parts, factors = self, dict[int, Floats]()
        while parts.base is not None:
            ufunc, operand = parts.steps[-1]
            axis = next((axis for axis in axes if operand.size == operand.shape[axis]), None)
            if ufunc is not np.multiply or axis is None:
                break
            factors[axis] = factors.get(axis, np.ones(1)) * operand.reshape(-1)
            parts = parts.base
        return parts, factors

    def bound(self, shape: tuple[int, ...]) -> float:
        """Return no less than the root of the sum of squares of a value of ``shape``; infinity where it is not told.

        Of numbers that are stored in float32 that takes a quarter of the time of reading them in float64.
        """
        first = self._first()
        if first.stored is None or any(ufunc is not np.multiply for ufunc, _ in self.steps):
            return math.inf
        read, total = first.stored(), SQUARE_LOST
        with np.errstate(all="ignore"):  # what overflows is told as infinite
            for start, stop in first.cuts(shape):
                piece = read(start, stop).ravel(order="K")
                if piece.dtype not in (np.float32, np.float64):
                    return math.inf
                total += float(np.dot(piece, piece))
            found = 2 * math.sqrt(total) * math.prod(float(np.abs(factor).max()) for _, factor in self.steps)
        return math.inf if math.isnan(found) else found

    def steps_from(self, other: Parts) -> tuple[Step, ...] | None:
        """Return what makes this value of ``other``; None where it is not made of it."""
        known = len(other.steps)
        if self.origin is not other.origin or self.axis != other.axis or len(self.steps) < known:
            return None
        same = all(mine[1] is theirs[1] for mine, theirs in zip(self.steps, other.steps, strict=False))
        return self.steps[known:] if same else None

    def step(self, piece: Floats, step: Step, start: int, stop: int) -> Floats:
        """Apply one step to a piece, in place."""
        ufunc, operand = step
        return np.asarray(ufunc(piece, self._cut(operand, start, stop), out=piece))

    def _then(self, ufunc: np.ufunc, operand: Floats) -> Parts:
        steps = (*self.steps, (ufunc, operand))

        def load() -> Reader:
            read = self._first().open()

            def stepped(start: int, stop: int) -> Floats:
                piece = read(start, stop)
                for at, cut in _joined([(at, self._cut(array, start, stop)) for at, array in steps], piece.size):
                    piece = np.asarray(at(piece, cut, out=piece))
                return piece

            return stepped

        return Parts(self.axis, load, self.origin, steps, self)

    def _first(self) -> Parts:
        """Return the parts to which nothing was done yet."""
        return self if self.base is None else self.base._first()

    def _cut(self, operand: Floats, start: int, stop: int) -> Floats:
        return operand if operand.shape[self.axis] == 1 else operand[self.place(start, stop)]


def _joined(steps: Sequence[Step], size: int) -> list[Step]:
    """Return steps of a piece of some size, factors in a row as one where their product has fewer numbers than it."""
    found: list[Step] = []
    for ufunc, operand in steps:
        if found and ufunc is found[-1][0] is np.multiply:
            wide = np.broadcast_shapes(found[-1][1].shape, operand.shape)
            if math.prod(wide) < size:
                found[-1] = ufunc, found[-1][1] * operand
                continue
        found.append((ufunc, operand))
    return found


def read_together(
    versions: Sequence[Parts], shape: tuple[int, ...], step: int = 1
) -> Iterator[tuple[int, int, int, Floats]]:
    """Read several versions of one constant at once, each made of the one before it (:meth:`Parts.steps_from`).

    Yields:
        (start, stop, which version, piece); a piece is overwritten by the next version's.
    """
    first = versions[0]
    tails = [later.steps_from(earlier) for earlier, later in itertools.pairwise(versions)]
    read = first.open()
    for start, stop in first.cuts(shape, step):
        piece = read(start, stop)
        yield start, stop, 0, piece
        for index, tail in enumerate(tails, start=1):
            if tail is None:
                raise ValueError("a constant is not made of the one before it; expected versions in order")
            for item in tail:
                piece = first.step(piece, item, start, stop)
            yield start, stop, index, piece
