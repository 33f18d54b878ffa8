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
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from normdeploy.rewrite.gauge.expression_rows import (
    Equation,
    Flags,
    Held,
    Ints,
    Rows,
    across,
    combined,
    gathered,
    rooted,
    trimmed,
)
from normdeploy.rewrite.gauge.independent_rows import apart, first_uses
from normdeploy.rewrite.gauge.insertion import Single, grown, substituted
from normdeploy.rewrite.gauge.signs import SignMark, Signs, Stated

AGREES = 1e-9
"""Relative difference below which two derivations of one number agree: float64 rounding of a chain of maps."""

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
        loose: unknowns that are left where it is no contradiction: none of them is there without a power, or the root
            of a negative number would be asked for.
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
    held: list[Held] = field(default_factory=list)
    _batch: Ints = field(default_factory=lambda: np.full(1, -1, np.int64))
    _row: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _single: Single = field(default_factory=Single)
    _slack: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(1, np.int8))
    signs: Signs = field(default_factory=Signs)
    _scratch: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _count: int = 1
    _journal: list[Ints] = field(default_factory=list)

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
        for name in ("_batch", "_row", "_slack", "_scratch"):
            setattr(self, name, grown(getattr(self, name), size))
        self._single.grow(size)
        self.signs.grow(size)

    # -- transactions

    def mark(self) -> Mark:
        """Return a mark of what holds now, to which :meth:`rollback` returns."""
        return Mark(len(self._journal), len(self.held), self.signs.mark())

    def rollback(self, mark: Mark) -> None:
        """Take back what was stated since a mark; marks after it are void."""
        for unknowns in self._journal[mark.journal :]:
            self._batch[unknowns] = -1
        del self._journal[mark.journal :], self.held[mark.held :]
        self.signs.rollback(mark.signs)

    # -- equations

    def add(self, rows: Rows, why: object) -> Conflict | None:
        """State that the rows are neutral (0 or 1); on a conflict a part of them may hold already."""
        return self.add_all([rows], [why])

    def add_all(self, parts: Sequence[Rows], whys: Sequence[object]) -> Conflict | None:
        """State that rows of several, of as many terms, are neutral."""
        rows = parts[0] if len(parts) == 1 else Rows.joined(parts)
        stated = Equation(rows, whys, list(accumulate(map(len, parts))))
        left, origin = self.reduce(rows), np.arange(len(rows))
        while len(left):
            used = left.coefficients != 0
            if not used.all() and (empty := ~across(np.logical_or, used)).any():
                wrong = empty & ~self._neutral(left)
                if wrong.any():
                    at = np.flatnonzero(wrong)
                    return Conflict(self, stated, origin[at], float(left.constant[at[0]]))
                left, origin, used = left.at(~empty), origin[~empty], used[~empty]
                if not len(left):
                    return None
            column, possible, lone = self._pivots(left, used)
            if not possible.all():
                left = rooted(left, ~possible)
                column, possible, lone = self._pivots(left, left.coefficients != 0)
            if not possible.all():
                at = np.flatnonzero(~possible)
                loose = left.unknowns[at[0]][left.coefficients[at[0]] != 0]
                return Conflict(self, stated, origin[at], float(left.constant[at[0]]), loose=loose)
            pivots = left.unknowns[np.arange(len(left)), column]
            if lone or (together := apart(left, pivots, self._scratch)).all():
                return self._hold(left, column, pivots, stated, origin)
            conflict = self._hold(left.at(together), column[together], pivots[together], stated, origin[together])
            if conflict is not None:
                return conflict
            left, origin = self.reduce(left.at(~together)), origin[~together]
        return None

    def positive(self, rows: Rows, why: object) -> Conflict | None:
        """State that expressions are positive (multiplicative systems)."""
        stated = Equation(rows, [why], [len(rows)])
        return self._signed(stated, self.signs.require(self.reduce(rows), np.arange(len(rows)), stated))

    def _signed(self, stated: Equation, wrong: tuple[int, tuple[Stated, ...]] | None) -> Conflict | None:
        return None if wrong is None else Conflict(self, stated, np.array(wrong[:1]), -1.0, because=wrong[1])

    def _pivots(self, rows: Rows, used: Flags) -> tuple[Ints, Flags, bool]:
        """Return each row's pivot column, whether it has one, and whether no unknown stands in two rows."""
        fit = used & (np.abs(rows.coefficients) == 1) if self.multiplicative else used
        flat = rows.unknowns.reshape(-1)
        lone = bool(first_uses(flat, self._scratch).all())
        if rows.unknowns.shape[1] == 1:
            return np.zeros(len(rows), np.int64), fit[:, 0], lone
        # few rows first, then slack, then the youngest
        score = 2 * self._slack[rows.unknowns] + rows.unknowns / self._count
        if not lone:
            self._scratch[flat] = 0
            np.add.at(self._scratch, flat, 1)
            score -= 4 * self._scratch[rows.unknowns]
        score[~fit] = -np.inf
        return score.argmax(axis=1), across(np.logical_or, fit), lone

    def _hold(self, rows: Rows, column: Ints, pivots: Ints, stated: Equation, origin: Ints) -> Conflict | None:
        at = np.arange(len(rows))
        coefficient = rows.coefficients[at, column]
        if rows.unknowns.shape[1] == 2:
            unknowns = rows.unknowns[at, 1 - column][:, None]
            coefficients = (-rows.coefficients[at, 1 - column] / coefficient)[:, None]
        else:
            coefficients = -rows.coefficients / coefficient[:, None]
            coefficients[at, column] = 0.0
            unknowns = np.where(coefficients != 0, rows.unknowns, 0)
        if self.multiplicative:
            constant = np.where(coefficient > 0, 1.0 / rows.constant, rows.constant)
            size = np.abs(constant)
        else:
            constant, size = -rows.constant / coefficient, rows.size / np.abs(coefficient)
        held = Held(pivots, trimmed(Rows(unknowns, coefficients, constant, size)), stated, origin)
        self.held.append(held)
        self._batch[pivots], self._row[pivots] = len(self.held) - 1, at
        self._single.note(pivots, held.rows)
        self._journal.append(pivots)
        if not self.multiplicative:
            return None
        signed = np.flatnonzero(self.signs.concerns(pivots))
        if not len(signed):
            return None
        known = held.rows.at(signed)
        terms = np.column_stack([known.unknowns, pivots[signed]])
        powers = np.column_stack([known.coefficients, np.ones(len(signed))])
        equal = Rows(terms, powers, known.constant, known.size)
        return self._signed(stated, self.signs.require(equal, origin[signed], stated, pivots[signed]))

    def _neutral(self, rows: Rows) -> Flags:
        if self.multiplicative:
            return np.abs(rows.constant - 1) <= AGREES
        return np.abs(rows.constant) <= AGREES * rows.size

    def reduce(self, rows: Rows) -> Rows:
        """Express rows by unknowns that are free."""
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
                rows, bound, self.held, self._batch, self._row, multiplicative=self.multiplicative)  # fmt: skip
            bound = self._batch[rows.unknowns] >= 0
            open_ = across(np.logical_or, bound)

    def holder(self, unknown: int) -> tuple[Equation, int] | None:
        """Return the equation, and its row, that determines an unknown; None for a free one."""
        if self._batch[unknown] < 0:
            return None
        held = self.held[self._batch[unknown]]
        return held.stated, int(held.origin[self._row[unknown]])

    @property
    def size(self) -> int:
        """Number of unknowns, the neutral one included."""
        return self._count
