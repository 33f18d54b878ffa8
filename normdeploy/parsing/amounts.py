"""Counts and durations that a user gives: one rule for the command line and for Python."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

from normdeploy.errors import UsageError


def require_count(name: str, value: SupportsIndex, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``.

    Args:
        name: as the user spells it, such as ``--batch`` or ``batch_size``.
        value: what was given.
        least: the smallest number that is taken.

    Raises:
        UsageError: it is smaller, or no whole number.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or count < least:
        raise UsageError(f"{name}={value!r}; expected a whole number of at least {least}: give {least} or more")
    return count


def require_seconds(name: str, value: float) -> float:
    """Return a duration: finite and above 0, for nothing is measured in no time, and what has no end does not return.

    Raises:
        UsageError: it is none.
    """
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name}={value!r}; expected seconds above 0: give a positive number, as 0.5")
    return float(value)
