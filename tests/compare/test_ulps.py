"""Units of the last place: counted as values that can be represented, whatever the type."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normdeploy.compare import ulps_between

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(value=FLOATS, steps=st.integers(0, 50))
def test_as_many_as_nextafter_takes(value: float, steps: int) -> None:
    start = end = np.float32(value)
    with np.errstate(over="ignore"):  # behind the largest
        for _ in range(steps):
            end = np.nextafter(end, np.float32(np.inf))
    if np.isfinite(end):
        zeros = start < 0 <= end and np.signbit(end)  # nextafter passes -0.0, which is no value of its own here
        assert ulps_between(np.array([start]), np.array([end])) == steps - zeros


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_across_zero_and_at_the_ends(dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    info = ml_dtypes.finfo(kind)
    tiny = float(info.smallest_subnormal)
    one = np.array([-tiny, 0.0, 1.0], kind)
    assert ulps_between(one, np.array([tiny, -0.0, 1.0], kind)) == 2
    assert ulps_between(one, np.array([-tiny, 0.0, 1.0 + float(info.eps)], kind)) == 1
    lowest, highest = np.array([info.min], kind), np.array([info.max], kind)
    counted = ulps_between(lowest, highest)
    exponents, mantissa = 2 ** (8 * kind.itemsize - 1 - info.nmant) - 1, 2**info.nmant
    assert counted == pytest.approx(2 * (exponents * mantissa - 1), rel=1e-15)


def test_what_is_no_number() -> None:
    nan, inf = np.array([np.nan, 1], "f4"), np.array([np.inf, 1], "f4")
    assert ulps_between(nan, nan) == 0
    assert ulps_between(inf, inf) == 0
    assert ulps_between(nan, inf) == math.inf
    assert ulps_between(inf, -inf) == math.inf
    assert ulps_between(np.array([1], "i4"), np.array([2], "i4")) is None
    assert ulps_between(np.zeros(0, "f4"), np.zeros(0, "f4")) == 0


def test_types_meet_in_the_coarser_one() -> None:
    wide = np.array([1 + 2.0**-12, 1 + 2.0**-10], "f4")
    assert ulps_between(wide, np.array([1, 1], "f2")) == 1
    assert ulps_between(wide[:1], np.array([1], "f2")) == 0
