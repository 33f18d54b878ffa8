"""What rows of a batch determine, and which of them can hold together: none reads what another one determines.

Back-substitution takes a batch in one step (:mod:`.substitute`), so that within a batch no pivot may stand in another
row. The rows that are left over are reduced by those that hold, and come again.

Most of what operators state is that two cells have one scale. As single equations each would be put into those that
come later; all at once they are the edges of a graph, the classes are its components, and a row brings each unknown
into its class.

Source: R. E. Tarjan and J. van Leeuwen, Worst-case analysis of set union algorithms, 1984.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from normdeploy.rewrite.gauge.equations.expression_rows import Flags, Ints, Rows, across


def first_uses(unknowns: Ints, scratch: Ints) -> Flags:
    """Tell where an unknown comes for the first time; ``scratch``, one number per unknown, is written to."""
    at = np.arange(len(unknowns))
    scratch[unknowns[::-1]] = at[::-1]
    return np.asarray(scratch[unknowns] == at)


_FEW = 16
"""Rows up to which it takes no longer to solve the same twice than to look for it."""


def said_once(rows: Rows, scratch: Ints) -> Flags | None:
    """Tell which rows of a batch repeat none in front of them, as most sums of many cells do; None where all are told.

    Args:
        rows: expressions. scratch: one number per unknown, which is written to.
    """
    if len(rows) <= _FEW:
        return None
    at, leading = np.arange(len(rows)), rows.unknowns[:, 0]
    scratch[leading[::-1]] = at[::-1]
    first = scratch[leading]
    same = (first != at) & (rows.constant == rows.constant[first])
    for column in range(rows.unknowns.shape[1]):
        unknowns, coefficients = rows.unknowns[:, column], rows.coefficients[:, column]
        same &= (unknowns == unknowns[first]) & (coefficients == coefficients[first])
    return np.asarray(~same) if same.any() else None


def pivots(
    rows: Rows, slack: npt.NDArray[np.int8], count: int, scratch: Ints, *, multiplicative: bool
) -> tuple[Ints, Flags, bool]:
    """Choose the unknown that each row is to determine: one of few rows, then slack, then the youngest.

    Args:
        rows: expressions.
        slack: by unknown, whether it takes up what others ask for. count: of all unknowns.
        scratch: one number per unknown, which is written to.
        multiplicative: an unknown to another power than 1 or -1 is not determined.

    Returns:
        the column of each row's unknown, whether it has one, and whether no unknown stands in two rows.
    """
    fit = np.abs(rows.coefficients) == 1 if multiplicative else rows.coefficients != 0
    flat = rows.unknowns.reshape(-1)
    lone = bool(first_uses(flat, scratch).all())
    if rows.unknowns.shape[1] == 1:
        return np.zeros(len(rows), np.int64), fit[:, 0], lone
    score = 2 * slack[rows.unknowns] + rows.unknowns / count
    if not lone:
        scratch[flat] = 0
        np.add.at(scratch, flat, 1)
        score -= 4 * scratch[rows.unknowns]
    score[~fit] = -np.inf
    return score.argmax(axis=1), across(np.logical_or, fit), lone


def apart(rows: Rows, pivots: Ints, scratch: Ints) -> Flags:
    """Tell which rows can hold together: the first one, and others whose pivots the chosen rows neither are nor read.

    Args:
        rows: the batch.
        pivots: [rows], the unknown that each row is to determine.
        scratch: one number per unknown, which is written to.

    Returns:
        Flags of shape [rows].
    """
    chosen = first_uses(pivots, scratch)
    if rows.unknowns.shape[1] == 1:  # a row reads nothing but its pivot
        return chosen
    places = np.flatnonzero(chosen)
    scratch[rows.unknowns] = -1
    scratch[pivots[places]] = places
    owner = np.where(rows.coefficients != 0, scratch[rows.unknowns], -1)
    foreign = (owner >= 0) & (owner != np.arange(len(rows))[:, None])
    foreign &= chosen[:, None]
    reader, read = np.nonzero(foreign)[0], owner[foreign]
    first, second = np.minimum(reader, read), np.maximum(reader, read)
    while len(first):  # of two that cannot hold together the first one holds, if none in front of it forbids it
        free = np.ones(len(rows), bool)
        free[second] = False
        chosen[second[free[first]]] = False
        undecided = chosen[first] & chosen[second]
        first, second = first[undecided], second[undecided]
    return chosen


def equalities(rows: Rows, *, multiplicative: bool) -> Flags:
    """Tell which rows say of two unknowns that they are one."""
    if rows.unknowns.shape[1] != 2:
        return np.zeros(len(rows), bool)
    first, second = rows.coefficients.T
    return np.asarray((first == -second) & (np.abs(first) == 1) & (rows.constant == float(multiplicative)))


def united(rows: Rows, slack: npt.NDArray[np.int8], scratch: Ints, *, multiplicative: bool) -> tuple[Ints, Rows, Ints]:
    """Return which unknowns are one with another, in one step, however many rows say so.

    Args:
        rows: equalities.
        slack: by unknown, whether it takes up what others ask for: it gives way, and a young one to an old one.
        scratch: one number per unknown, which is written to.
        multiplicative: what is neutral is 1.

    Returns:
        the unknowns, what each is, and the row that says so: as many independent rows as unknowns.
    """
    flat = rows.unknowns.reshape(-1)
    names = flat[first_uses(flat, scratch)]  # what no row speaks of costs nothing
    scratch[names] = np.arange(len(names))
    left, right = scratch[rows.unknowns].T
    rank = names + len(slack) * slack[names].astype(np.int64)
    row, stands_for, by = np.arange(len(rows)), np.arange(len(names)), np.full(len(names), -1)
    while True:
        left, right = stands_for[left], stands_for[right]
        open_ = np.flatnonzero(left != right)
        if not len(open_):
            break
        left, right, row = left[open_], right[open_], row[open_]
        later = rank[left] > rank[right]
        left, right = np.where(later, left, right), np.where(later, right, left)
        once = first_uses(left, scratch)  # each of them joins another class once, by one row
        stands_for[left[once]], by[left[once]] = right[once], row[once]
        while ((further := stands_for[stands_for]) != stands_for).any():
            stands_for = further
    found = np.flatnonzero(by >= 0)
    one, neutral = np.ones((len(found), 1)), np.full(len(found), float(multiplicative))
    return names[found], Rows(names[stands_for[found]][:, None], one, neutral, neutral), by[found]
