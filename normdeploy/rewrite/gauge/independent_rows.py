"""Which rows of a batch can hold together: none reads what another one determines.

Back-substitution takes a batch in one step (:mod:`.substitute`), so that within a batch no pivot may stand in another
row. The rows that are left over are reduced by those that hold, and come again.
"""

from __future__ import annotations

import numpy as np

from normdeploy.rewrite.gauge.expression_rows import Flags, Ints, Rows


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
