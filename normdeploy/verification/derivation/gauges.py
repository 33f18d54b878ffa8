"""Gauges as arrays: w = s v + t, where v is a value of the file and w one of the source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats

NOISE = 1e-12
"""Float64's own rounding over a few operations, relative to the largest term of a sum."""

ROOM = 64.0
"""Units of rounding of the source's own terms that storing may move a result; operands count as of size 1 in them."""

VANISHING, VAST = 2.0**-200, 2.0**150
"""What a scale of 0 counts as where its inverse scales what it is computed of, and what no other scale exceeds."""

_ROUNDOFF = {
    ir.DataType.FLOAT: (2.0**-24, 2.0**-126),
    ir.DataType.FLOAT16: (2.0**-11, 2.0**-14),
    ir.DataType.BFLOAT16: (2.0**-8, 2.0**-126),
    ir.DataType.DOUBLE: (2.0**-53, 2.0**-1022),
}
"""Unit roundoff and smallest normal number of each type that numbers are stored in."""


def is_as_fine(dtype: ir.DataType | None, other: ir.DataType | None) -> bool:
    """Tell whether a type of floats holds each number that another one does."""
    if dtype not in _ROUNDOFF or other not in _ROUNDOFF:
        return False
    return all(mine <= its for mine, its in zip(_ROUNDOFF[dtype], _ROUNDOFF[other], strict=True))


@dataclass(frozen=True)
class ScaledValue:
    """scale * value + shift, element by element."""

    value: ir.Value
    scale: Floats
    shift: Floats

    @property
    def is_identity(self) -> bool:
        """It is the value itself."""
        return bool((self.scale == 1).all() and (self.shift == 0).all())


@dataclass(frozen=True)
class Claim(ScaledValue):
    """w = scale * value + shift, for every input.

    Args:
        value: the file's value. scale, shift: of w's rank, of size 1 along axes where they do not vary.
        assumed: it was not confirmed, or follows from one that was not.
        rows: the value has another shape; it holds w's rows, along the last axis, in their order.
        guard: size of the smallest part of the shift that guards a pole (:mod:`.zero_guards`); 0 where none does.
        terms: size of what the shift was summed from, in its unit and of its shape, where that is larger; 0 where not.
        again: the axis along which scale and shift begin again until it is full, whatever its size: heads that were
            merged with samples. Only laws that ask for such a claim are told of it.
        lost: size of a shift beside which what is stored loses its digits (:mod:`.lost_digits`), in w's unit, of w's
            rank; 0 where it does not. Such a claim holds behind a map of the source that takes the shift off.
    """

    assumed: bool = False
    rows: bool = False
    guard: float = 0.0
    terms: Floats | float = 0.0
    again: int | None = None
    lost: Floats | float = 0.0

    @property
    def tells_less(self) -> bool:
        """Digits are lost that nothing made up for yet."""
        return bool(((np.asarray(self.lost) > 0) & (self.shift != 0)).any())

    @property
    def summed(self) -> Floats:
        """Size of what the shift was summed from; its own where a part of it guards a pole, and may not be lost."""
        own: Floats = np.abs(self.shift)
        return own if self.guard else np.maximum(own, self.terms)

    def then(self, scale: Floats, shift: Floats) -> Claim:
        """Return the claim for scale * w + shift."""
        moved = composed(scale, shift, self.scale, self.shift)
        terms = np.abs(scale) * self.terms
        lost = np.abs(scale) * self.lost
        lost = np.where(lost <= ROOM * np.abs(shift), 0.0, lost)  # where the source adds as much
        return Claim(self.value, *moved, self.assumed, self.rows, self.guard, terms, self.again, lost)


def stands_for_nothing(scale: Floats) -> Array:
    """Tell which scales are vast: the file holds 0 there, which only a map by 0 makes the source's again."""
    found: Array = np.asarray(np.abs(scale) > VAST)
    return found


def filled(part: Floats, axis: int | None, size: int) -> Floats:
    """Return a scale or shift begun again along an axis up to a size; one number, or no axis, stays."""
    return part if axis is None or part.shape[axis] == 1 else part.take(np.arange(size) % part.shape[axis], axis)


def composed(outer: Floats, add: Floats, scale: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """Return s and t of outer * (scale v + shift) + add; what float64's rounding leaves of 1 and 0 is 1 and 0.

    Of a row that a map scales by 0 a file keeps the shift alone. That its weights are 0 is confirmed as their being
    less than any number, by a scale that is vast; so the 0 is less than any number here, and their product a scale.
    """
    if not np.all(outer):
        outer = np.where((outer == 0) & (np.abs(scale) > VAST), VANISHING, outer)
    product, moved = outer * scale, outer * shift
    product = np.where(np.abs(product - 1) <= NOISE, 1.0, product)
    total = np.asarray(moved + add)
    if np.any(moved) and np.any(add):  # one of them alone is not rounded
        total = np.where(np.abs(total) <= noise_of(np.abs(moved) + np.abs(add)), 0.0, total)
    return product, total


def noise_of(size: Floats) -> Floats:
    """Return how far float64's own rounding may move a sum of terms this large; infinities are not moved."""
    return NOISE * np.where(np.isfinite(size), size, 0.0)


def ranked(array: Array, rank: int) -> Floats | None:
    """Return an array with leading axes of size 1 up to a rank; None where it has more that count."""
    found = np.asarray(array, np.float64)
    while found.ndim > rank and found.shape[0] == 1:
        found = found[0]
    return found.reshape((1,) * (rank - found.ndim) + found.shape) if found.ndim <= rank else None


def along(array: Floats, axis: int, size: int) -> Floats | None:
    """Return what an array is along one axis, as a vector; None where it varies along others."""
    moved = np.moveaxis(array, axis, -1)
    if any(n != 1 for n in moved.shape[:-1]) or moved.shape[-1] not in (1, size):
        return None
    return np.array(np.broadcast_to(moved.reshape(-1), (size,)))


def placed(vector: Floats, axis: int, rank: int) -> Floats:
    """Return a vector along one axis of an array of a rank."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def uniform(array: Floats) -> float | None:
    """Return the one number of an array; None where it holds several."""
    first = float(array.reshape(-1)[0]) if array.size else 0.0
    return first if bool((array == first).all()) else None


def alike(one: Floats, other: Floats) -> bool:
    """Tell whether numbers are equal up to float64's rounding."""
    with np.errstate(invalid="ignore"):  # infinities are equal, or they are not
        return bool(((one == other) | (np.abs(one - other) <= 10 * noise_of(np.abs(other)))).all())


def unit_roundoff(dtype: ir.DataType | None) -> float:
    """Return by how much of a number rounding to a type may move it; 0 where nothing is known of the type."""
    return _ROUNDOFF[dtype][0] if dtype in _ROUNDOFF else 0.0


def radius(values: Array, dtype: ir.DataType | None) -> Floats:
    """Return half a unit in the last place of each stored number."""
    if dtype not in _ROUNDOFF:
        return np.zeros_like(values, np.float64)
    unit, tiny = _ROUNDOFF[dtype]
    _, exponent = np.frexp(np.maximum(np.abs(np.asarray(values, np.float64)), tiny))
    return np.asarray(np.ldexp(unit, exponent - 1))
