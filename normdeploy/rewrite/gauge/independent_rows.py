"""Which rows of a batch can hold together: none reads what another one determines.

Back-substitution takes a batch in one step (:mod:`.substitute`), so that within a batch no pivot may stand in another
row. The rows that are left over are reduced by those that hold, and come again.
"""

from __future__ import annotations

import numpy as np

from normdeploy.rewrite.gauge.expression_rows import Flags, Ints, Rows, across


def first_uses(unknowns: Ints, scratch: Ints) -> Flags:
    """Tell where an unknown comes for the first time; ``scratch``, one number per unknown, is written to."""
    at = np.arange(len(unknowns))
    scratch[unknowns[::-1]] = at[::-1]
    return np.asarray(scratch[unknowns] == at)


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
    reading = across(np.logical_or, foreign) & chosen
    if not reading.any():
        return chosen
    determined: set[int] = set()
    read: set[int] = set()
    reading[owner[foreign & chosen[:, None]]] = True  # the others touch nobody
    for at in np.flatnonzero(reading).tolist():
        pivot, terms = int(pivots[at]), rows.unknowns[at][rows.coefficients[at] != 0].tolist()
        if pivot in read or not determined.isdisjoint(terms):
            chosen[at] = False
            continue
        determined.add(pivot)
        read.update(terms)
    return chosen
