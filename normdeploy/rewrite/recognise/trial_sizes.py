"""Sizes to try for dynamic dimensions: what holds must hold at several, so that none of them decides by chance.

An axis of one element belongs to every block of statistics and to none, and two axes of one size can be taken for each
other. So the sizes of a turn differ from one another, those of a region's input are two at least and differ from its
static ones where they can (behind strided convolutions the image has to be large for that), and each turn gives others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph.dynamic_dims import names_of, size_at

TURNS = 3
"""How many assignments of sizes a hypothesis about dynamic dimensions has to hold at."""

_GROWTH: tuple[Callable[[int], int], ...] = (lambda n: 2 * n, lambda n: 2 * n + 1, lambda n: 3 * n)
_Wish = Callable[[list[int], int], bool]
_LARGEST = 1 << 14
"""Sizes of the graph's own dimensions are not grown beyond this to make a region's input larger than one."""


class Sizes:
    """Concrete sizes for dynamic dimensions, the same for the same name.

    Args:
        turn: which assignment, below :data:`TURNS`; each gives every dimension another size.
        x: the value whose dimensions shall be told apart; its rank must be known.

    Raises:
        GraphError: a dynamic dimension of ``x`` is 1 at all sizes tried.
    """

    def __init__(self, turn: int, x: ir.Value) -> None:
        self._fresh = itertools.islice(_distinct(), turn, None)
        self._grow = _GROWTH[turn % len(_GROWTH)]
        self._given: dict[str, int] = {}
        self._fit(turn, x)

    @property
    def given(self) -> dict[str, int]:
        """Sizes handed out so far, by name."""
        return self._given

    def of(self, value: ir.Value) -> tuple[int, ...]:
        """Return a concrete shape for a value; its rank must be known.

        Raises:
            GraphError: a dimension is zero or less at these sizes.
        """
        sizes = self._sizes(value)
        if any(size < 1 for size in sizes):
            raise GraphError(f"{value.name!r} would have the sizes {sizes} at {self._given}; expected one or more")
        return tuple(sizes)

    def _fit(self, turn: int, x: ir.Value) -> None:
        """Grow the names in dimensions of ``x`` until each is two or more, not as before, and differs from the rest."""
        dims = list(x.shape or ())
        names = [names_of(dim) or (f"{x.name}.{axis}",) for axis, dim in enumerate(dims)]
        dynamic = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int)]
        before = Sizes(turn - 1, x).of(x) if turn and dynamic else None

        def seen(sizes: list[int], axis: int) -> bool:
            return sizes[axis] >= 2 and (before is None or sizes[axis] != before[axis])

        def told_apart(sizes: list[int], axis: int) -> bool:
            others = (size for at, size in enumerate(sizes) if at != axis and dims[at] != dims[axis])
            return seen(sizes, axis) and sizes[axis] not in others

        for wanted in (told_apart, seen):
            for axis in (*dynamic, *dynamic):  # twice: growing one changes the others of its names
                self._grow_until(wanted, x, axis, names[axis])
        for axis in dynamic:
            if self._sizes(x)[axis] < 2:
                raise GraphError(
                    f"dimension {axis} of {x.name!r} ({dims[axis]}) is 1 at every size tried; expected a size of 2 or "
                    "more, at which its elements can be told from their mean: declare it as 1, or the sizes it takes"
                )

    def _grow_until(self, wanted: _Wish, x: ir.Value, axis: int, names: Sequence[str]) -> None:
        start = {name: self._give(name) for name in names}
        while not wanted(self._sizes(x), axis):
            grown = {name: self._grow(self._given[name]) for name in names}
            if max(grown.values()) > _LARGEST:
                self._given.update(start)
                return
            self._given.update(grown)

    def _sizes(self, value: ir.Value) -> list[int]:
        """Return the dimensions as their names give them, also where that is none or fewer."""
        if value.shape is None:
            raise ValueError(f"value {value.name!r} has no known rank")
        return [self._dim(dim, f"{value.name}.{axis}") for axis, dim in enumerate(value.shape)]

    def _dim(self, dim: int | ir.SymbolicDim, fallback: str) -> int:
        if isinstance(dim, int):
            return dim
        names = names_of(dim)
        if dim.value is None or names in ((), (dim.value,)):
            return self._give(names[0] if names else fallback)
        result = size_at(dim, {name: self._give(name) for name in names})
        return self._give(dim.value) if result is None else result

    def _give(self, name: str) -> int:
        if name not in self._given:
            taken = set(self._given.values())
            self._given[name] = next(size for size in self._fresh if size not in taken)
        return self._given[name]


def _distinct() -> Iterator[int]:
    """Yield 2, 3, 5, 4, 7, 6, 9, 8, ...: small, distinct, odd and even."""
    yield from (2, 3)
    for even in itertools.count(4, 2):
        yield from (even + 1, even)
