"""Batches of expressions over unknowns, one row per cell of a gauge, so that numpy does the work.

A row stands for c_1 T_1 + c_2 T_2 + ... + k (additive systems), or for S_1^c_1 * S_2^c_2 * ... * k (multiplicative).
Unknown 0 is the neutral constant (T = 0, S = 1), which fills rows of fewer terms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Array, Floats
from normdeploy.rewrite.affine.affine_map import SMALLEST

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_AGREES = 1e-9
"""Relative difference below which two derivations of one number agree: float64 rounding of a chain of maps."""

_FEW = 8
"""Columns up to which one after the other is faster than a reduction."""


def across(operation: np.ufunc, array: Array) -> Array:
    """Return what an operation makes of each row's terms: of a few columns that takes a tenth of a reduction's time."""
    if array.shape[1] > _FEW and array.dtype.kind != "f":  # floats are added up in one order, however many they are
        return np.asarray(operation.reduce(array, axis=1))
    return np.asarray(reduce(operation, array.T))


@dataclass(eq=False, slots=True)
class Rows:
    """Expressions, one per row: unknowns, their coefficients (or exponents), the constant.

    Args:
        unknowns: [rows, terms]; 0 where a row has fewer terms.
        coefficients: [rows, terms]; 0 where a row has fewer terms.
        constant: [rows].
        size: [rows], the sum of the sizes of all that was added up in the constant (additive systems).
    """

    unknowns: Ints
    coefficients: Floats
    constant: Floats
    size: Floats

    def __len__(self) -> int:
        return len(self.constant)

    def at(self, index: Ints | Flags) -> Rows:
        """Return some of the rows."""
        places = np.flatnonzero(index) if index.dtype == bool else index
        return Rows(
            self.unknowns.take(places, axis=0), self.coefficients.take(places, axis=0),
            self.constant.take(places), self.size.take(places),
        )  # fmt: skip

    @staticmethod
    def of(*terms: tuple[Ints, Floats | float], constant: Floats | float) -> Rows:
        """Return one row per element of broadcast arrays of unknowns, coefficients and constants."""
        parts = [np.asarray(part) for term in terms for part in term]
        total = np.asarray(constant, np.float64)
        shapes = {part.shape for part in (*parts, total)}
        shape = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
        unknowns, coefficients = np.empty((*shape, len(terms)), np.int64), np.empty((*shape, len(terms)))
        for at in range(len(terms)):
            unknowns[..., at], coefficients[..., at] = parts[2 * at], parts[2 * at + 1]
        total = np.array(np.broadcast_to(total, shape)).reshape(-1)
        return Rows(
            unknowns.reshape(-1, len(terms)), coefficients.reshape(-1, len(terms)), total, np.abs(total)
        )  # fmt: skip

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """Return the rows of several batches of as many terms, one behind the other."""
        return Rows(
            np.concatenate([part.unknowns for part in parts]), np.concatenate([part.coefficients for part in parts]),
            np.concatenate([part.constant for part in parts]), np.concatenate([part.size for part in parts]),
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class Equation:
    """A batch of equations as it was stated.

    Args:
        rows: what was stated.
        whys: who stated it. stops: where, among the rows, that of each of them ends.
    """

    rows: Rows
    whys: Sequence[object]
    stops: Sequence[int]

    @staticmethod
    def joined(parts: Sequence[tuple[Rows, object]]) -> Equation:
        """Return what several state, in rows of as many terms."""
        rows = [part for part, _ in parts]
        whole = rows[0] if len(rows) == 1 else Rows.joined(rows)
        return Equation(whole, [why for _, why in parts], list(accumulate(map(len, rows))))

    def why(self, row: int) -> object:
        """Return who stated a row."""
        return self.whys[bisect_right(self.stops, row)]

    def places(self, rows: Ints) -> set[int]:
        """Return which of those who stated it, by place, stated some rows."""
        return set(np.searchsorted(self.stops, rows, side="right").tolist())


@dataclass
class Held:
    """A batch that holds: each pivot expressed by other unknowns."""

    pivots: Ints
    rows: Rows
    stated: Equation
    origin: Ints


MANY = 32
"""Terms of a row above which equal unknowns are found by sorting."""


def out_of_range(numbers: Floats) -> Flags:
    """Tell which numbers, or their inverses, float64 does not hold."""
    size = np.abs(numbers)
    return np.asarray(~((size >= SMALLEST) & (size <= 1 / SMALLEST)))


def neutral(rows: Rows, *, multiplicative: bool) -> Flags:
    """Tell of which rows nothing is left but what is neutral: 0, or 1."""
    if multiplicative:
        return np.asarray(np.abs(rows.constant - 1) <= _AGREES)
    return np.asarray(np.abs(rows.constant) <= _AGREES * rows.size)


def power(base: Floats, exponent: Floats) -> Floats:
    """Return base ** exponent, exactly where the exponent is 1 and to half a unit where it is -1."""
    plain = exponent == 1
    if plain.all():
        return base
    inverse = np.where(plain, base, 1.0 / base)
    rest = np.abs(exponent) != 1
    return np.where(rest, np.power(np.where(rest, base, 1.0), exponent), inverse) if rest.any() else inverse


def rooted(rows: Rows, which: npt.NDArray[np.bool_]) -> Rows:
    """Take the root that all exponents of a product share: S^2 T^-4 k = 1 becomes S T^-2 sqrt(k) = 1.

    Left as they are: exponents that are no whole numbers or share no divisor, and the even root of a negative number.
    """
    whole = which & (rows.coefficients == np.round(rows.coefficients)).all(axis=1)
    shared = np.gcd.reduce(np.abs(np.where(whole[:, None], rows.coefficients, 0.0)).astype(np.int64), axis=1)
    shared = np.where((rows.constant > 0) | (shared % 2 == 1), np.maximum(shared, 1), 1)
    constant = np.sign(rows.constant) * np.abs(rows.constant) ** (1.0 / shared)
    constant = np.where(shared == 1, rows.constant, constant)
    return Rows(rows.unknowns, rows.coefficients / shared[:, None], constant, np.abs(constant))


def gathered(parts: list[tuple[Ints, Rows]]) -> Rows:
    """Put parts of a batch together again."""
    if len(parts) == 1:
        return parts[0][1]
    width = max(rows.unknowns.shape[1] for _, rows in parts)
    count = sum(len(index) for index, _ in parts)
    unknowns, coefficients = np.zeros((count, width), np.int64), np.zeros((count, width))
    constant, size = np.zeros(count), np.zeros(count)
    for index, rows in parts:
        terms = rows.unknowns.shape[1]
        unknowns[index, :terms], coefficients[index, :terms] = rows.unknowns, rows.coefficients
        constant[index], size[index] = rows.constant, rows.size
    return Rows(unknowns, coefficients, constant, size)


def combined(rows: Rows) -> Rows:
    """Add up the terms of equal unknowns; neutral and vanishing terms go."""
    unknowns, coefficients = rows.unknowns, rows.coefficients
    live = (unknowns != 0) & (coefficients != 0)
    changed = not live.all()
    if changed:
        unknowns, coefficients = np.where(live, unknowns, 0), np.where(live, coefficients, 0.0)
    if unknowns.shape[1] > MANY:
        return trimmed(Rows(*_merged(unknowns, coefficients), rows.constant, rows.size))
    for right in range(1, unknowns.shape[1]):
        for left in range(right):
            same = unknowns[:, left] == unknowns[:, right]
            if changed:
                same &= unknowns[:, right] != 0
            if not same.any():
                continue
            if not changed:
                changed, unknowns, coefficients = True, unknowns.copy(), coefficients.copy()
            total = coefficients[same, left] + coefficients[same, right]
            size = np.abs(coefficients[same, left]) + np.abs(coefficients[same, right])
            coefficients[same, left] = np.where(np.abs(total) <= 1e-14 * size, 0.0, total)
            coefficients[same, right] = 0.0
            unknowns[same, right] = 0
    if not changed:
        return rows
    unknowns = np.where(coefficients != 0, unknowns, 0)
    return trimmed(Rows(unknowns, coefficients, rows.constant, rows.size))


def _merged(unknowns: Ints, coefficients: Floats) -> tuple[Ints, Floats]:
    """Add up the terms of equal unknowns by sorting each row: pairs of columns are too many in a sum of thousands."""
    order = np.argsort(unknowns, axis=1, kind="stable")
    unknowns, coefficients = np.take_along_axis(unknowns, order, 1), np.take_along_axis(coefficients, order, 1)
    first = np.ones(unknowns.shape, bool)
    first[:, 1:] = unknowns[:, 1:] != unknowns[:, :-1]
    starts = np.flatnonzero(first)  # every row begins with one, so that no sum goes over its end
    total, size = np.add.reduceat(coefficients.ravel(), starts), np.add.reduceat(np.abs(coefficients).ravel(), starts)
    flat = np.zeros(coefficients.size)
    flat[starts] = np.where(np.abs(total) <= 1e-14 * size, 0.0, total)
    summed = flat.reshape(coefficients.shape)
    return np.where(summed != 0, unknowns, 0), summed


def trimmed(rows: Rows) -> Rows:
    """Move rows' terms to the left where that saves a column."""
    if rows.unknowns.shape[1] == 1:
        return rows
    used = rows.coefficients != 0
    counts = across(np.add, used.astype(np.int64))
    width = max(int(counts.max(initial=0)), 1)
    if width == rows.unknowns.shape[1]:
        return rows
    if not used[:, width:].any():
        return Rows(rows.unknowns[:, :width], rows.coefficients[:, :width], rows.constant, rows.size)
    unknowns, coefficients = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width))
    row, column = np.nonzero(used)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    unknowns[row, place], coefficients[row, place] = rows.unknowns[row, column], rows.coefficients[row, column]
    return Rows(unknowns, coefficients, rows.constant, rows.size)


def solved(rows: Rows, column: Ints, *, multiplicative: bool) -> Rows:
    """Return the unknown in a column of each row by the row's other terms.

    Args:
        rows: what is neutral. column: of each row.
        multiplicative: products and powers, of which that of the unknown is 1 or -1, in place of sums and multiples.
    """
    at = np.arange(len(rows))
    coefficient = rows.coefficients[at, column]
    if rows.unknowns.shape[1] == 2:
        unknowns = rows.unknowns[at, 1 - column][:, None]
        coefficients = (-rows.coefficients[at, 1 - column] / coefficient)[:, None]
    else:
        coefficients = -rows.coefficients / coefficient[:, None]
        coefficients[at, column] = 0.0
        unknowns = np.where(coefficients != 0, rows.unknowns, 0)
    if multiplicative:
        constant = np.where(coefficient > 0, 1.0 / rows.constant, rows.constant)
        size = np.abs(constant)
    else:
        constant, size = -rows.constant / coefficient, rows.size / np.abs(coefficient)
    return trimmed(Rows(unknowns, coefficients, constant, size))
