"""An expression put into others, in the place of the unknown that it determines."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from normdeploy.array_types import Array, Floats
from normdeploy.rewrite.gauge.equations.expression_rows import Flags, Held, Ints, Rows, combined, power

_SHORT = 4
"""Terms up to which all bound unknowns of a row are renamed at once."""


def grown(array: Array, size: int) -> Array:
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
        if rows.unknowns.shape[1] > _SHORT:
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
    return combined(Rows(unknowns, coefficients, constant, size))
