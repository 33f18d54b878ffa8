"""Equations over many unknowns at once, solved as they come; the last ones can be taken back.

Two systems of one form are needed: shifts t obey linear equations, scales s the same ones in the exponent::

    additive:         c_1 T_1 + c_2 T_2 + ... + k = 0
    multiplicative:   S_1^c_1 * S_2^c_2 * ... * k = 1

An equation that comes is reduced by those that hold, one unknown of it (its pivot) is expressed by the others, and it
holds from then on. Where nothing is left of the unknowns, the constant decides: neutral, it was known already; else it
contradicts. For equations of two unknowns this is union-find with potentials; sums and products of computed values have
more. Equations come as batches, one row per cell of a gauge, so that the work is done by numpy.

The pivot is an unknown that few rows of the batch share, and among these one marked as *slack*: the bias of a layer
that writes a branch takes up what the readers of the sum ask for.

Unknown 0 is the neutral constant (T = 0, S = 1). The exponents of pivots are 1 or -1; where a value is multiplied with
itself, S^2 k = 1, the positive root is taken.

Source: R. E. Tarjan and J. van Leeuwen, Worst-case analysis of set union algorithms, 1984, for the potentials;
B. A. Galler and M. J. Fisher, An improved equivalence algorithm, 1964.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from normdeploy.rewrite.gauge.equations.expression_rows import (
    Equation,
    Flags,
    Held,
    Ints,
    Rows,
    across,
    combined,
    gathered,
    neutral,
    out_of_range,
    rooted,
    solved,
)
from normdeploy.rewrite.gauge.equations.independent_rows import apart, equalities, pivots, said_once, united
from normdeploy.rewrite.gauge.equations.insertion import Single, grown, substituted
from normdeploy.rewrite.gauge.equations.signs import SignMark, Signs, Stated

_ROOM = 1 << 12
"""Unknowns for which there is room at first."""


@dataclass(frozen=True, eq=False)
class Conflict:
    """A row that contradicts those before it.

    Args:
        system: the system, in whose state the row is contradictory.
        equation: the batch.
        wrong: the contradictory rows that were found.
        found: the constant that is left of the first where the neutral one was expected.
        because: where it is the sign that contradicts, who required those that it contradicts.
        loose: unknowns that are left where it is no contradiction, but all to powers: a root need not be real.
    """

    system: System
    equation: Equation
    wrong: Ints
    found: float
    because: tuple[Stated, ...] | None = None
    loose: Ints | None = None

    @property
    def row(self) -> int:
        """The first contradictory row."""
        return int(self.wrong[0])


@dataclass(frozen=True)
class Mark:
    """What holds at some time: how much was noted down and held by then, and the signs."""

    journal: int
    held: int
    signs: SignMark


@dataclass
class System:
    """A system of equations.

    Args:
        multiplicative: products and powers in place of sums and multiples.
    """

    multiplicative: bool
    _held: list[Held] = field(default_factory=list)
    _batch: Ints = field(default_factory=lambda: np.full(1, -1, np.int64))
    _row: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _single: Single = field(default_factory=Single)
    _slack: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(1, np.int8))
    _spoken_of: Flags = field(default_factory=lambda: np.zeros(1, bool))
    signs: Signs = field(default_factory=Signs)
    _scratch: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _count: int = 1
    _journal: list[Ints] = field(default_factory=list)
    _waiting: list[tuple[Rows, object]] = field(default_factory=list)
    _signed: list[tuple[Rows, object]] = field(default_factory=list)

    def new(self, shape: tuple[int, ...], *, slack: bool = False) -> Ints:
        """Return fresh unknowns, positive unless an equation says otherwise."""
        start, stop = self._count, self._count + math.prod(shape)
        if stop > len(self._batch):
            self._grow(max(stop, _ROOM, 4 * len(self._batch)))
        self._batch[start:stop] = -1
        if slack:
            self._slack[start:stop] = 1
        self._count = stop
        return np.arange(start, stop, dtype=np.int64).reshape(shape)

    def _grow(self, size: int) -> None:
        for name in ("_batch", "_row", "_slack", "_spoken_of", "_scratch"):
            setattr(self, name, grown(getattr(self, name), size))
        self._single.grow(size)
        self.signs.grow(size)

    @property
    def held(self) -> Sequence[Held]:
        """What holds, the last batch by free unknowns alone."""
        self.settle()
        return self._held

    def mark(self) -> Mark:
        """Return a mark of what holds now, to which :meth:`rollback` returns."""
        self.settle()
        return Mark(len(self._journal), len(self._held), self.signs.mark())

    def rollback(self, mark: Mark) -> None:
        """Take back what was stated since a mark; marks after it are void."""
        for unknowns in self._journal[mark.journal :]:
            self._batch[unknowns] = -1
        del self._journal[mark.journal :], self._held[mark.held :]
        self.signs.rollback(mark.signs)

    def state(self, rows: Rows, why: object, *, positive: bool = False) -> None:
        """State that rows are neutral, or positive, where that contradicts nothing: the identity solves all of it.

        It is solved together, when something else is asked: one step over many rows takes as long as over few.
        """
        if (once := said_once(rows, self._scratch)) is not None:
            rows = rows.at(once)
        self._spoken_of[rows.unknowns] = True
        (self._signed if positive else self._waiting).append((rows, why))

    def settle(self) -> None:
        """Solve what was stated: equations of one and two terms together, then the others as they came.

        Which unknown a sum or a product determines hangs on what holds before it.
        """
        waiting, signed, self._waiting, self._signed = self._waiting, self._signed, [], []
        groups = [[part for part in waiting if part[0].unknowns.shape[1] == terms] for terms in (1, 2)]
        for group in filter(None, [*groups, *([part] for part in waiting if part[0].unknowns.shape[1] > 2)]):
            stated = Equation.joined(group)
            conflict = self._add(stated)
            while conflict is not None and conflict.loose is not None:  # what enters by powers alone keeps its scale
                alone = Rows.of((conflict.loose, 1.0), constant=1.0)
                _agrees(self._add(Equation.joined([(alone, stated.why(conflict.row))])))
                conflict = self._add(stated)
            _agrees(conflict)
        if signed:
            _agrees(self._require(Equation.joined(signed)))

    def add(self, rows: Rows, why: object) -> Conflict | None:
        """State that the rows are neutral (0 or 1); on a conflict a part of them may hold already."""
        return self.add_all([rows], [why])

    def add_all(self, parts: Sequence[Rows], whys: Sequence[object]) -> Conflict | None:
        """State that rows of several, of as many terms, are neutral."""
        self.settle()
        return self._add(Equation.joined(list(zip(parts, whys, strict=True))))

    def _add(self, stated: Equation) -> Conflict | None:
        self._spoken_of[stated.rows.unknowns] = True
        left, origin = self._reduced(stated.rows), np.arange(len(stated.rows))
        while len(left):
            if self.multiplicative and (at := np.flatnonzero(out_of_range(left.constant))).size:
                return Conflict(self, stated, origin[at], float(left.constant[at[0]]))
            used = left.coefficients != 0
            if not used.all() and (empty := ~across(np.logical_or, used)).any():
                if (at := np.flatnonzero(empty & ~neutral(left, multiplicative=self.multiplicative))).size:
                    return Conflict(self, stated, origin[at], float(left.constant[at[0]]))
                left, origin, used = left.at(~empty), origin[~empty], used[~empty]
                if not len(left):
                    return None
            if (once := said_once(left, self._scratch)) is not None:
                left, origin = left.at(once), origin[once]
            if (equal := equalities(left, multiplicative=self.multiplicative)).any():
                slack = self._slack[: self._count]
                bound, as_one, by = united(left.at(equal), slack, self._scratch, multiplicative=self.multiplicative)
                conflict = self._bind(Held(bound, as_one, stated, origin[equal][by]))
                if conflict is not None:
                    return conflict
                left, origin = self._reduced(left.at(~equal)), origin[~equal]
                continue
            column, possible, lone = self._pivots(left)
            if not possible.all():
                left = rooted(left, ~possible)
                column, possible, lone = self._pivots(left)
                if (at := np.flatnonzero(~possible)).size:
                    loose = left.unknowns[at[0]][left.coefficients[at[0]] != 0]
                    return Conflict(self, stated, origin[at], float(left.constant[at[0]]), loose=loose)
            bound = left.unknowns[np.arange(len(left)), column]
            together = np.ones(len(left), bool) if lone else apart(left, bound, self._scratch)
            expressed = solved(left.at(together), column[together], multiplicative=self.multiplicative)
            conflict = self._bind(Held(bound[together], expressed, stated, origin[together]))
            if conflict is not None or together.all():
                return conflict
            left, origin = self._reduced(left.at(~together)), origin[~together]
        return None

    def _pivots(self, rows: Rows) -> tuple[Ints, Flags, bool]:
        return pivots(rows, self._slack, self._count, self._scratch, multiplicative=self.multiplicative)

    def positive(self, rows: Rows, why: object) -> Conflict | None:
        """State that expressions are positive (multiplicative systems)."""
        self.settle()
        return self._require(Equation.joined([(rows, why)]))

    def _require(self, stated: Equation) -> Conflict | None:
        left = self._reduced(stated.rows)
        return self._signs_agree(stated, self.signs.require(left, np.arange(len(left)), stated))

    def _signs_agree(self, stated: Equation, wrong: tuple[Ints, tuple[Stated, ...]] | None) -> Conflict | None:
        return None if wrong is None else Conflict(self, stated, wrong[0], -1.0, because=wrong[1])

    def _bind(self, held: Held) -> Conflict | None:
        """Let unknowns be expressed by others from now on, and their signs."""
        bound = held.pivots
        self._held.append(held)
        self._batch[bound], self._row[bound] = len(self._held) - 1, np.arange(len(bound))
        self._single.note(bound, held.rows)
        self._journal.append(bound)
        if not self.multiplicative:
            return None
        signed = np.flatnonzero(self.signs.concerns(bound))
        if not len(signed):
            return None
        known = held.rows.at(signed)
        terms = np.column_stack([known.unknowns, bound[signed]])
        powers = np.column_stack([known.coefficients, np.ones(len(signed))])
        equal = Rows(terms, powers, known.constant, known.size)
        found = self.signs.require(equal, held.origin[signed], held.stated, bound[signed])
        return self._signs_agree(held.stated, found)

    def reduce(self, rows: Rows) -> Rows:
        """Express rows by unknowns that are free."""
        if not self._spoken_of[rows.unknowns[rows.unknowns > 0]].any():  # what waits to be solved may wait
            return combined(rows)
        self.settle()
        return self._reduced(rows)

    @np.errstate(over="ignore", invalid="ignore")  # what comes out of range is told from what was found
    def _reduced(self, rows: Rows) -> Rows:
        rows = combined(rows)
        bound = self._batch[rows.unknowns] >= 0
        if not bound.any():
            return rows
        open_ = across(np.logical_or, bound)
        done: list[tuple[Ints, Rows]] = []
        index = np.arange(len(rows))
        while True:
            closed = ~open_
            if closed.any():
                done.append((index[closed], rows.at(closed)))
                index, rows, bound = index[open_], rows.at(open_), bound[open_]
            if not len(index):
                return gathered(done)
            rows = self._single.renamed(rows, bound, multiplicative=self.multiplicative) or substituted(
                rows, bound, self._held, self._batch, self._row, multiplicative=self.multiplicative)  # fmt: skip
            bound = self._batch[rows.unknowns] >= 0
            open_ = across(np.logical_or, bound)

    def holder(self, unknown: int) -> tuple[Equation, int] | None:
        """Return the equation, and its row, that determines an unknown; None for a free one."""
        if self._batch[unknown] < 0:
            return None
        held = self._held[self._batch[unknown]]
        return held.stated, int(held.origin[self._row[unknown]])

    @property
    def size(self) -> int:
        """Number of unknowns, the neutral one included."""
        return self._count


def _agrees(conflict: Conflict | None) -> None:
    """Check that what operators state is consistent: the identity satisfies it."""
    if conflict is not None:
        raise AssertionError(f"ties of operators contradict each other: {conflict.equation.why(conflict.row)}")
