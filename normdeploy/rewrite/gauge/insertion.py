"""An expression put into others, in the place of the unknown that it determines.

What is put in and what is there have no equal unknowns of their own, and no unknown without a coefficient: only those
of the one can meet those of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from normdeploy.rewrite.gauge.expression_rows import MANY, Flags, Floats, Held, Ints, Rows, combined, power, trimmed

_WIDE = 4
"""Terms of an expression from which on two of one batch are subtracted column by column."""


def grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return a longer array with zeros behind, which take no memory before they are written."""
    found = np.zeros(size, array.dtype)
    found[: len(array)] = array
    return found


@dataclass
class Single:
    """What each unknown is that is one other unknown, times a number or to a power, and a constant.

    Args:
        other: by unknown; -1 for what is more than that. share: coefficient or exponent of the other one.
        constant: added or multiplied with. size: of what was added up in it.
    """

    other: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    share: Floats = field(default_factory=lambda: np.zeros(1))
    constant: Floats = field(default_factory=lambda: np.zeros(1))
    size: Floats = field(default_factory=lambda: np.zeros(1))

    def grow(self, size: int) -> None:
        """Make room for more unknowns."""
        self.other = grown(self.other, size)
        self.share, self.constant, self.size = (grown(part, size) for part in (self.share, self.constant, self.size))

    def note(self, pivots: Ints, rows: Rows) -> None:
        """Note what pivots are."""
        if rows.unknowns.shape[1] > 1:
            self.other[pivots] = -1
            return
        self.other[pivots], self.share[pivots] = rows.unknowns[:, 0], rows.coefficients[:, 0]
        self.constant[pivots], self.size[pivots] = rows.constant, rows.size

    def renamed(self, rows: Rows, bound: Flags, *, multiplicative: bool) -> Rows | None:
        """Put in, for all bound unknowns of short rows at once, the single one that each is; None where none is."""
        if rows.unknowns.shape[1] > _WIDE:
            return None
        found = self.other[rows.unknowns]
        single = bound & (found >= 0)
        if not single.any():
            return None
        neutral, constant, size = float(multiplicative), rows.constant, rows.size
        known = np.where(single, self.constant[rows.unknowns], neutral)
        if multiplicative and (known != 1).any():
            for at in range(rows.unknowns.shape[1]):
                constant = constant * power(known[:, at], rows.coefficients[:, at])
        elif not multiplicative and (sizes := np.where(single, self.size[rows.unknowns], 0.0)).any():
            for at in range(rows.unknowns.shape[1]):
                constant = constant + rows.coefficients[:, at] * known[:, at]
                size = size + np.abs(rows.coefficients[:, at]) * sizes[:, at]
        share = np.where(single, self.share[rows.unknowns], 1.0)
        return combined(Rows(np.where(single, found, rows.unknowns), rows.coefficients * share, constant, size))


def substituted(
    rows: Rows, bound: Flags, held: list[Held], batch_of: Ints, row_of: Ints, *, multiplicative: bool
) -> Rows:
    """Put the expression of one bound unknown of each row in its place; every row has one.

    Args:
        rows: expressions, without equal unknowns.
        bound: which of their unknowns are determined.
        held: what determines them. batch_of, row_of: in which of these, and in which row of it, by unknown.
        multiplicative: products and powers in place of sums and multiples.
    """
    where = np.arange(len(rows))
    column = bound.argmax(axis=1)
    unknown = rows.unknowns[where, column]
    factor = rows.coefficients[where, column]
    batches = batch_of[unknown]
    several = np.unique(batches) if (batches != batches[0]).any() else batches[:1]
    width = max(held[batch].rows.unknowns.shape[1] for batch in several)
    count, terms = rows.unknowns.shape
    if (
        terms == 2
        and width >= _WIDE
        and len(several) == 1
        and bound.all()
        and (batch_of[rows.unknowns] == several).all()
    ):
        return _of_one_batch(rows, held[several[0]].rows, row_of, multiplicative=multiplicative)
    unknowns = np.zeros((count, terms + width - 1), np.int64)
    coefficients = np.zeros((count, terms + width - 1))
    unknowns[:, :terms], coefficients[:, :terms] = rows.unknowns, rows.coefficients
    constant, size = rows.constant.copy(), rows.size.copy()
    for batch in several:
        mine = np.flatnonzero(batches == batch) if len(several) > 1 else where
        share = factor[mine]
        known = held[batch].rows.at(row_of[unknown[mine]])
        stop = terms + known.unknowns.shape[1] - 1
        added = known.coefficients * share[:, None]
        unknowns[mine, column[mine]], coefficients[mine, column[mine]] = known.unknowns[:, 0], added[:, 0]
        unknowns[mine, terms:stop], coefficients[mine, terms:stop] = known.unknowns[:, 1:], added[:, 1:]
        if multiplicative:
            constant[mine] *= power(known.constant, share)
        else:
            constant[mine] += share * known.constant
            size[mine] += np.abs(share) * known.size
    made = Rows(unknowns, coefficients, constant, size)
    return combined(made) if min(terms, width) > MANY else _joined(made, terms, column)


def _of_one_batch(rows: Rows, held: Rows, row_of: Ints, *, multiplicative: bool) -> Rows:
    """Put in the expressions of both unknowns of each row, which differ in few columns: the rest is added up at once.

    Differences of one value's cells are such rows, as a norm asks for them.
    """
    left, right = (held.at(row_of[rows.unknowns[:, at]]) for at in (0, 1))
    shares = rows.coefficients[:, 0], rows.coefficients[:, 1]
    first, second = left.coefficients * shares[0][:, None], right.coefficients * shares[1][:, None]
    same = left.unknowns == right.unknowns
    total = first + second
    gone = np.abs(total) <= 1e-14 * (np.abs(first) + np.abs(second))
    first = np.where(same, np.where(gone, 0.0, total), first)
    order = [0, left.unknowns.shape[1]]  # as if one had been put in after the other
    order += [at for at in range(2 * order[1]) if at not in order]
    unknowns = np.concatenate([left.unknowns, right.unknowns], axis=1)
    coefficients = np.concatenate([first, np.where(same, 0.0, second)], axis=1)
    if multiplicative:
        constant = rows.constant * power(left.constant, shares[0]) * power(right.constant, shares[1])
        size = rows.size
    else:
        constant = rows.constant + shares[0] * left.constant + shares[1] * right.constant
        size = rows.size + np.abs(shares[0]) * left.size + np.abs(shares[1]) * right.size
    unknowns, coefficients = unknowns[:, order], coefficients[:, order]
    np.copyto(unknowns, 0, where=coefficients == 0)
    return combined(trimmed(Rows(unknowns, coefficients, constant, size)))


def _joined(rows: Rows, terms: int, column: Ints) -> Rows:
    """Do what :func:`combined` does where an expression was put into another, neither with equal unknowns of its own.

    Args:
        rows: their unknowns and coefficients are overwritten.
        terms: the columns of what was there; those behind them were put in.
        column: [rows], the one of them in which the first term of what was put in stands.
    """
    unknowns, coefficients = rows.unknowns, rows.coefficients
    idle = unknowns == 0
    changed = bool(idle.any())
    at, count = np.arange(len(rows)), unknowns.shape[1]
    sought = np.where(idle, -1, unknowns) if changed else unknowns  # so that what is neutral equals nothing
    same = unknowns[:, :terms] == sought[at, column, None]
    same[at, column] = False
    pairs = [(*np.nonzero(same), column)] if same.any() else []
    if count - terms < terms:
        for place in range(terms, count):
            same = unknowns[:, :terms] == sought[:, place, None]
            if same.any():
                pairs.append((*np.nonzero(same), np.full(len(rows), place)))
    else:
        for place in range(terms):
            same = sought[:, terms:] == unknowns[:, place, None]
            if same.any():
                row, other = np.nonzero(same)
                pairs.append((row, other + terms, np.full(len(rows), place)))
    for row, one, others in pairs:
        other = others[row]
        left, right = np.minimum(one, other), np.maximum(one, other)
        first, second = coefficients[row, left], coefficients[row, right]
        total = first + second
        coefficients[row, left] = np.where(np.abs(total) <= 1e-14 * (np.abs(first) + np.abs(second)), 0.0, total)
        coefficients[row, right] = 0.0
    if not changed and not pairs:
        return rows
    np.copyto(unknowns, 0, where=coefficients == 0)
    return trimmed(rows)
