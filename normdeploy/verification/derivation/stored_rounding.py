"""Stored numbers against what they should be: the one rounding, another tool's rounding, or wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.verification.derivation.gauges import NOISE, Array, Floats, radius

_CHUNK = 1 << 20
_OTHER_ROUNDING, _OF_THE_LARGEST = 16.0, 4.0
"""Half units by which numbers folded in their own precision may lie off: of each number (a root, a quotient, products,
each rounded), and of the tensor's largest (a sum that cancels)."""


@dataclass(frozen=True)
class Wrong:
    """A stored number is not what it should be.

    Args:
        text: a clause. rounding: none is further off than another order of rounding explains.
        node: the operator of a body that holds it. parts: the operators that are looked at as one, with those behind.
    """

    text: str
    rounding: bool = False
    node: ir.Node | None = None
    parts: tuple[ir.Node, ...] = ()


def compare(
    have: Array,
    dtype: ir.DataType | None,
    want: Array,
    factor: Floats | None = None,
    *,
    slack: Floats | float = 0.0,
    size: Floats | float = 0.0,
    place: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
) -> Wrong | None:
    """Hold stored numbers against ``want * factor``.

    Args:
        have: as stored. dtype: what in.
        want: of the same shape, or to be broadcast to it. factor: broadcasts against both.
        slack: how far off each may be beyond half a unit.
        size: of the terms that were summed, where they are larger than the result.
        place: where the file holds a number, by its index here.
    """
    if have.dtype.kind not in "fV" and str(have.dtype) != "bfloat16":
        whole = want if factor is None else want * factor
        same = have.shape == np.shape(whole) and np.array_equal(have, whole)
        return None if same else Wrong("is not the same integers")
    if have.ndim == 0:
        have, want = have.reshape(1), np.asarray(want).reshape(1)
        factor = None if factor is None else factor.reshape(1)
    try:
        whole = np.broadcast_to(want, have.shape)
        factors = None if factor is None else np.broadcast_to(factor, have.shape)
        slacks, sizes = np.broadcast_to(slack, have.shape), np.broadcast_to(size, have.shape)
    except ValueError:
        return Wrong(f"has shape {list(have.shape)}; expected {list(np.shape(want))}")
    rows = max(_CHUNK // max(have.size // max(len(have), 1), 1), 1)
    worst, furthest, count, rounding = "", 0.0, 0, True
    index: tuple[int, ...] = ()
    for start in range(0, len(have), rows):
        cut = slice(start, start + rows)
        if factors is None and have.dtype == whole.dtype and np.array_equal(have[cut], whole[cut]):
            continue
        expected = whole[cut].astype(np.float64, copy=False)
        if factors is not None:
            expected = expected * factors[cut]
        if dtype == ir.DataType.FLOAT and _is_rounding_of(have[cut], expected):
            continue
        stored = have[cut].astype(np.float64)
        half = radius(stored, dtype)
        noise = NOISE * (np.abs(expected) + sizes[cut])
        with np.errstate(invalid="ignore"):
            off = np.abs(stored - expected)
            good = (off <= half * (1 + 1e-6) + slacks[cut] + noise) | (stored == expected)
            good |= np.isnan(stored) & np.isnan(expected)
        if good.all():
            continue
        count += int((~good).sum())
        allowed = radius(expected, dtype) * _OTHER_ROUNDING + slacks[cut] + noise
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.where(good, 0.0, np.nan_to_num(off / allowed, nan=np.inf))
        if far.max() > furthest:
            furthest = float(far.max())
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(far)), far.shape))
            index = (at[0] + start, *at[1:])
            worst = f"is {stored[at]:.9g} at {{}}; expected {expected[at]:.12g}"
        top = radius(np.array([np.abs(expected).max(initial=0.0), np.max(sizes[cut], initial=0.0)]), dtype).max()
        rounding &= bool((off[~good] <= (allowed + _OF_THE_LARGEST * top)[~good]).all())
    if not count:
        return None
    return Wrong(f"{worst.format(list(place(index)))} ({count} of {have.size} numbers differ)", rounding)


def _is_rounding_of(have: Array, expected: Floats) -> bool:
    """Tell whether each number is the float32 nearest to what is expected, and finite: the plain case, told fast."""
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    return bool((rounded == have).all()) and bool(np.isfinite(rounded).all())
