"""Whether a gauge leaves a stored number its digits: rounded once in the file's unit, it may be gone in the source's.

W x + b as v + 2^40: b - 2^40 is stored to half a unit of itself, and nothing of b is left; where an ArgMax or a norm
behind takes no notice of the shift, no later number shows it. So is a weight that a scale makes less than the smallest
normal number, or 0. A derivation may ask for that, so what storing may move is held against what the source adds up,
and where it is more, the claim holds behind a map of the source alone that takes the shift off (a channel that a norm
scales by 1e-9 has such a shift in front of the norm).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.verification.derivation.gauges import (
    ROOM,
    Claim,
    ScaledValue,
    radius,
    stands_for_nothing,
    unit_roundoff,
)

FORGOTTEN = "it takes no notice of a scale or a shift by which the file lost its digits"
"""Of a gauge by which numbers cannot be told any more, and of an operator behind which it is another."""

TOO_SMALL = "its numbers are scaled to less than what their type holds"
TOO_LARGE = "its numbers lose their digits beside a shift that is taken off behind it"

_SMALL = {ir.DataType.FLOAT16: 1.0}
"""Factors of this size and above make no number of a trained network less than the smallest normal one of a type."""

_OF_OTHERS = 2.0**-32


def losses(
    stored: Array,
    source: Array,
    held_in: ir.DataType | None,
    factor: Floats,
    gauge: ScaledValue,
    off: Floats,
    size: Floats,
    dtype: ir.DataType | None,
) -> Floats | str:
    """Return the size of a gauge's shift where numbers beside it lose what they are to tell, 0 elsewhere.

    Args:
        stored: weights in rows, or scales. source: the source's. held_in: the type of what is stored. factor: by which
            it is the source's.
        gauge: of the result, brought to the shape of rows. off: how far rounding may have moved what is stored of the
            shift, in the file's unit. size: of the terms that the source adds up there, in its own unit, without the
            gauge's shift. dtype: of the result.

    Returns:
        It, or in a clause why nothing behind makes up for what is lost.
    """
    if _loses_scale(stored, source, held_in, factor, gauge.scale):
        return TOO_SMALL
    lost = _lost_beside(gauge.shift, off, gauge.scale, size, dtype)
    return TOO_LARGE if ((lost > 0) & (gauge.shift == 0)).any() else lost


def sums_of_rows(weight: Array) -> Floats:
    """Return the sums of the sizes of each row."""
    found: Floats = np.abs(weight).reshape(len(weight), -1).sum(1, dtype=np.float64)
    return found


def _lost_beside(shift: Floats, off: Floats, scale: Floats, size: Floats, dtype: ir.DataType | None) -> Floats:
    """Return the size of a gauge's shift where storing a number beside it loses what that is to tell; 0 elsewhere.

    Args:
        shift, scale: of the gauge. off: how far rounding may have moved what is stored, in the file's unit.
        size: of the terms that the source adds up there, in its own unit, without the gauge's shift.
        dtype: of the result.
    """
    unit = unit_roundoff(dtype) or unit_roundoff(ir.DataType.FLOAT)
    moved = np.where(stands_for_nothing(scale), 0.0, off * np.abs(scale))
    return np.where(moved > ROOM * unit * size, np.maximum(np.abs(shift), moved / unit), 0.0)


def _loses_scale(stored: Array, source: Array, dtype: ir.DataType | None, factor: Floats, scale: Floats) -> bool:
    """Tell whether numbers are scaled to below what their type holds.

    Args:
        stored: rows, or numbers. source: the source's. dtype: of what is stored. factor: by which it is the source's,
            broadcast against it. scale: of the gauge, one for each row, or as they are.
    """
    asked = (np.abs(scale) > 1) & ~stands_for_nothing(scale)
    if dtype is None or not (np.abs(factor) < _SMALL.get(dtype, _OF_OTHERS)).any() or not asked.any():
        return False
    numbers = np.abs(np.asarray(source, np.float64))
    in_rows = scale.ndim == 1 and numbers.ndim > 1
    rest = (1,) * (numbers.ndim - factor.ndim) if in_rows else ()
    largest = numbers.reshape(len(numbers), -1).max(1, initial=0.0) if in_rows else numbers
    half = radius(np.zeros(()), dtype)
    with np.errstate(divide="ignore"):
        moved = half / np.abs(factor.reshape(*factor.shape, *rest))  # in the source's unit
    small = (np.abs(np.asarray(stored, np.float64)) < half / unit_roundoff(dtype)) & (numbers > 0)
    allowed, counts = ROOM * unit_roundoff(dtype) * largest, asked
    if in_rows:
        by_row = (-1, *(1,) * (numbers.ndim - 1))
        allowed, counts = allowed.reshape(by_row), counts.reshape(by_row)
    return bool((small & counts & (moved > allowed)).any())


def forgets(claims: Iterable[Claim | None], scale: Floats, shift: Floats, lost: Floats | float = 0.0) -> bool:
    """Tell whether a result is of another gauge than what is read, though the file lost digits, or holds 0, by that.

    Args:
        claims: what is read. scale, shift: of the result. lost: what it lost by that (:func:`still_lost`).
    """
    kept = stands_for_nothing(scale)
    nothing = (stands_for_nothing(claim.scale) for claim in claims if claim is not None)
    untold = (np.asarray(lost) > 0) & (shift == 0)
    return bool(untold.any()) or any(each.any() and not _all_kept(each, kept) for each in nothing)


def still_lost(claims: Iterable[Claim | None], shift: Floats, *, in_place: bool, adds: bool = False) -> Floats:
    """Return what a result lost of what is read, by its shape: each in its place, or the most wherever it is shifted.

    Args:
        claims: what is read. shift: of the result.
        in_place: no element of the result is computed of what stands elsewhere along axes where the shift varies.
        adds: what is read is added up: beside an operand of size 1 a little is lost as well as rounded.
    """
    known = [claim for claim in claims if claim is not None]
    parts = [np.asarray(claim.lost, np.float64) for claim in known if claim.tells_less]
    if not parts:
        return np.zeros(())
    if in_place and all(_fits(part.shape, shift.shape) for part in parts):
        one = tuple(axis for axis, n in enumerate(shift.shape) if n == 1)
        lost = np.sum(np.broadcast_arrays(*(part.max(one, keepdims=True) for part in parts)), 0)
    else:
        most = sum(float(part.max()) for part in parts)
        lost = np.where(shift != 0, most, 0.0) if shift.any() else np.asarray(most)
    return np.where(lost <= ROOM, 0.0, lost) if adds and len(known) > 1 else lost


def _fits(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(part) == len(whole) and all(1 in (n, m) or n == m for n, m in zip(part, whole, strict=True))


def _all_kept(nothing: Array, kept: Array) -> bool:
    """Tell whether a result is of such a scale wherever what is read is; anywhere, where it has another shape."""
    fit = nothing.ndim == kept.ndim and all(
        1 in pair or pair[0] == pair[1] for pair in zip(nothing.shape, kept.shape, strict=True)
    )
    return bool((kept | ~nothing).all()) if fit else bool(kept.any())
