"""Back-substitution: every unknown of a system by those that are free.

What holds was expressed by unknowns that were free at its time, so the last batch is expressed by free ones alone, and
one pass over the batches, the last one first, is enough.
"""

from __future__ import annotations

import numpy as np

from normdeploy.array_types import Floats
from normdeploy.rewrite.gauge.equations.expression_rows import Ints, across, power
from normdeploy.rewrite.gauge.equations.system import System


def values(system: System, free: Floats) -> Floats:
    """Return the value of every unknown, given one for each that is free."""
    found, size = free.copy(), np.abs(free)
    for held in reversed(system.held):
        rows = held.rows
        inner, used = found[rows.unknowns], rows.coefficients != 0
        if system.multiplicative:
            found[held.pivots] = rows.constant * across(
                np.multiply, np.where(used, power(inner, rows.coefficients), 1.0)
            )
            continue
        terms = np.where(used, rows.coefficients * inner, 0.0)
        sizes = across(np.add, np.where(used, np.abs(rows.coefficients) * size[rows.unknowns], 0.0)) + rows.size
        total = rows.constant + across(np.add, terms)
        # what cancels is zero, not its rounding
        found[held.pivots], size[held.pivots] = np.where(np.abs(total) <= 1e-15 * sizes, 0.0, total), sizes
    return found


def roots(system: System) -> tuple[Ints, Floats, Floats]:
    """Return for each unknown the one free unknown it depends on, with coefficient (or exponent) and constant.

    The root is 0 for an unknown that is a number, and -1 for one that depends on several.
    """
    root = np.arange(system.size)
    coefficient = np.ones(system.size)
    coefficient[0] = 0.0
    constant = np.full(system.size, 1.0 if system.multiplicative else 0.0)
    for held in reversed(system.held):
        rows = held.rows
        used = rows.coefficients != 0
        inner = np.where(used, root[rows.unknowns], 0)
        total = rows.constant
        for column in range(rows.unknowns.shape[1]):
            known, share = constant[rows.unknowns[:, column]], rows.coefficients[:, column]
            if system.multiplicative:
                total = total * np.where(used[:, column], power(known, share), 1.0)
            else:
                total = total + np.where(used[:, column], known * share, 0.0)
        first = across(np.maximum, inner)  # -1 only where nothing but several-rooted terms are left
        several = across(np.logical_or, ((inner != first[:, None]) & (inner != 0)) | (inner < 0))
        part = np.where((inner == first[:, None]) & used, rows.coefficients * coefficient[rows.unknowns], 0.0)
        root[held.pivots] = np.where(several, -1, first)
        coefficient[held.pivots] = across(np.add, part)
        constant[held.pivots] = total
    root[(root > 0) & (coefficient == 0)] = 0
    return root, coefficient, constant
