"""Which unknowns a batch says to be one: classes, found on arrays, and the row that brings each unknown into its class.

Most of what operators state is that two cells have one scale. As single equations each would be put into those that
come later; all at once they are the edges of a graph, and the classes are its components.

Source: R. E. Tarjan and J. van Leeuwen, Worst-case analysis of set union algorithms, 1984.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from normdeploy.rewrite.gauge.expression_rows import Flags, Ints, Rows
from normdeploy.rewrite.gauge.independent_rows import first_uses


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
