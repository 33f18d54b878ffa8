"""How far two arrays lie from each other in units of the last place."""

from __future__ import annotations

from typing import Any

import numpy as np

from normdeploy.array_types import Array, Ints


def ulps_between(a: Array, b: Array) -> float | None:
    """Return the largest distance of two floating-point arrays in units of the last place of the coarser type.

    The distance is the number of representable values from one to the other, so that it has a meaning at zero, across
    signs and for subnormal numbers; 0.0 and -0.0 are the same value, and so are two that are not a number.

    Args:
        a, b: of one shape; float16, bfloat16, float32 or float64.

    Returns:
        the distance; infinite where one is finite and the other is not; None where neither is floating point.
    """
    coarse = min((a.dtype, b.dtype), key=_digits)
    if not (_digits(a.dtype) and _digits(b.dtype)):
        return None
    if a.size == 0:
        return 0.0
    both_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    steps = [_steps(x.astype(coarse)) for x in (a, b)]
    finite = [np.isfinite(x.astype(np.float64)) for x in (a, b)]
    same = both_nan | (a.astype(np.float64) == b.astype(np.float64))
    if np.any((finite[0] != finite[1]) & ~same) or np.any(~finite[0] & ~same):
        return float("inf")
    distance = (
        np.abs(steps[0].astype(object) - steps[1].astype(object))
        if coarse.itemsize == 8
        else np.abs(steps[0] - steps[1])
    )
    return float(np.max(np.where(same, 0, distance)))


def _digits(dtype: np.dtype[Any]) -> int:
    """Return the bits of a type's mantissa; 0 where it is not floating point."""
    return {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}.get(dtype.name, 0)


def _steps(array: Array) -> Ints:
    """Number the values of a floating-point type in their order, zero being 0."""
    width = array.dtype.itemsize
    bits = np.ascontiguousarray(array).view(f"i{width}").astype(np.int64)
    lowest = -(2 ** (8 * width - 1))
    return np.where(bits < 0, lowest - bits, bits)
