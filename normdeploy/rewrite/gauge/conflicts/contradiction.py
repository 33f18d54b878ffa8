"""The equations whose sum is a contradiction: why a map has to stay.

The equations that hold are independent of each other, so the ones that contradict a new one, and with which factors,
are determined: the proof of a map that stays is unique.

Source: R. Nieuwenhuis and A. Oliveras, Proof-producing congruence closure, 2005, for the form of the question.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from normdeploy.array_types import Floats
from normdeploy.rewrite.gauge.equations.expression_rows import Equation
from normdeploy.rewrite.gauge.equations.system import Conflict, System
from normdeploy.rewrite.gauge.ties import Tie

_LONGEST = 600
"""Equations that are looked through for a proof."""


@dataclass(frozen=True)
class Proof:
    """Equations that contradict each other.

    Args:
        ties: who stated them.
        unknowns: what they are about.
    """

    ties: tuple[Tie, ...]
    unknowns: frozenset[int]


def proof_of(conflict: Conflict) -> Proof:
    """Return the equations that contradict each other."""
    rows, share = _derivation(conflict.system, conflict.equation, conflict.row)
    stated = [(conflict.equation, conflict.row), *_used(rows, share)]
    for required in conflict.because or ():
        stated += [required, *_used(*_derivation(conflict.system, *required))]
    ties = dict.fromkeys(why for equation, row in stated if isinstance(why := equation.why(row), Tie))
    return Proof(tuple(ties), frozenset(int(unknown) for part in stated for unknown in _terms(*part)[0]))


_Held = tuple[int, Equation, int]
"""An unknown, the equation that determines it, and the row of that equation."""

_Row = tuple[Equation, int]
"""A row of a batch of equations."""


def _derivation(system: System, equation: Equation, row: int) -> tuple[list[_Held], Floats]:
    """Return the equations from which a row follows (or is contradicted), with their factors."""
    rows = _closure(system, equation, row)
    pivots = {unknown: at for at, (unknown, _, _) in enumerate(rows)}
    matrix, target = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    for at, (_, held, place) in enumerate(rows):
        for unknown, coefficient in zip(*_terms(held, place), strict=True):
            if unknown in pivots:
                matrix[pivots[unknown], at] += coefficient
    for unknown, coefficient in zip(*_terms(equation, row), strict=True):
        if unknown in pivots:
            target[pivots[unknown]] -= coefficient
    factors: Floats = np.asarray(np.linalg.lstsq(matrix, target, rcond=None)[0]) if len(rows) else np.zeros(0)
    return rows, factors


def _used(rows: list[_Held], share: Floats) -> list[_Row]:
    return [(equation, row) for weight, (_, equation, row) in zip(share, rows, strict=True) if abs(weight) > 1e-9]


def _closure(system: System, equation: Equation, row: int) -> list[_Held]:
    """Return the equations that determine what is in a row."""
    seen: set[int] = set()
    found: list[_Held] = []
    queue = deque(int(unknown) for unknown in _terms(equation, row)[0])
    while queue and len(found) < _LONGEST:
        unknown = queue.popleft()
        if unknown in seen or unknown == 0:
            continue
        seen.add(unknown)
        holder = system.holder(unknown)
        if holder is None or holder == (equation, row):
            continue  # free, or held by the very equation that is asked about
        found.append((unknown, *holder))
        queue.extend(int(other) for other in _terms(*holder)[0])
    return found


def _terms(equation: Equation, row: int) -> tuple[np.ndarray, np.ndarray]:
    used = (equation.rows.coefficients[row] != 0) & (equation.rows.unknowns[row] != 0)
    return equation.rows.unknowns[row][used], equation.rows.coefficients[row][used]
