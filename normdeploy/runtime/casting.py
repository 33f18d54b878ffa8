"""Numbers brought to another type only where that type holds them.

Rounding to a float's precision is what a narrower float is for. Everything else a cast would change without a word is
found instead: a whole number outside the integer's range, a fraction, NaN, what becomes infinite only by the cast.
"""

from __future__ import annotations

import numpy as np

from normdeploy.array_types import Array


def cast(values: Array, dtype: str) -> tuple[Array, Array | None]:
    """Return ``values`` as ``dtype``, 0 where it cannot hold them, and a mask of those places (None: nowhere).

    >>> cast(np.array([1.0, 2.5, 300.0]), "uint8")
    (array([1, 0, 0], dtype=uint8), array([False,  True,  True]))

    Args:
        values: numbers or booleans of any shape.
        dtype: a float, integer or boolean type of numpy.
    """
    target = np.dtype(dtype)
    if values.dtype == target or (target.kind in "fiu" and np.can_cast(values.dtype, target, "safe")):
        return values.astype(target, copy=False), None
    if target.kind == "f":
        with np.errstate(over="ignore"):
            rounded = values.astype(target)
        wrong = np.isinf(rounded)
        if not wrong.any() or not (wrong := wrong & ~np.isinf(values)).any():
            return rounded, None
    elif target.kind == "b":
        wrong = (values != 0) & (values != 1)
    else:
        low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
        if values.dtype.kind == "f":
            wide = values.astype(np.float64, copy=False)
            wrong = ~((wide >= float(low)) & (wide < float(high + 1)) & (wide == np.trunc(wide)))  # NaN is never in
        else:
            wrong = (values < low) | (values > high)
    if not wrong.any():
        return values.astype(target), None
    return np.where(wrong, values.dtype.type(0), values).astype(target), wrong


def expectation(dtype: str) -> str:
    """Say in words which numbers a type holds."""
    target = np.dtype(dtype)
    if target.kind == "b":
        return "0 or 1 (bool)"
    if target.kind in "iu":
        info = np.iinfo(target)
        return f"a whole number from {info.min} to {info.max} ({dtype})"
    return f"a number of at most {float(np.finfo(target).max):.6g} ({dtype})"
