"""Stored numbers against what they should be: what is told, however soon it is seen that they are others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.verification.derivation.stored_rounding import compare

FLOAT = ir.DataType.FLOAT
SIZES = [(20, 20), (130, 120)]
"""Looked at as a whole, and by a few rows first."""


def drawn(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.0, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SIZES)
def test_other_numbers_are_told_by_the_one_that_is_furthest_off(shape: tuple[int, int]):
    want = drawn(shape)
    have = want * np.float32(1.01)
    have[7, 5] = 100.0  # in no row that is looked at first
    found = compare(have, FLOAT, want)
    assert found is not None
    assert not found.rounding
    assert (
        found.text == f"is 100 at [7, 5]; expected {float(want[7, 5]):.12g} ({want.size} of {want.size} numbers differ)"
    )
    named = found.of("weights of Conv")
    assert (named.text, named.rounding) == (f"weights of Conv: {found.text}", False)


@pytest.mark.parametrize("shape", SIZES)
def test_one_number_among_right_ones_is_found(shape: tuple[int, int]):
    want = drawn(shape)
    have = want.copy()
    have[11, 3] += 0.25
    found = compare(have, FLOAT, want.astype(np.float64), np.ones(shape))
    assert found is not None
    assert not found.rounding
    assert "at [11, 3]" in found.text
    assert f"(1 of {want.size} numbers differ)" in found.text


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize(("units", "rounding"), [(0, None), (4, True), (400, False)])
def test_units_in_the_last_place_are_another_rounding_as_long_as_they_are_few(
    shape: tuple[int, int], units: int, rounding: bool | None
):
    want = drawn(shape)
    have = (want.view(np.int32) + units).view(np.float32)
    found = compare(have, FLOAT, want)
    assert (None if found is None else found.rounding) is rounding


@pytest.mark.parametrize("shape", SIZES)
def test_a_large_number_elsewhere_allows_small_ones_its_own_rounding(shape: tuple[int, int]):
    """As sums that cancel leave it: a unit of the largest, in the rows looked at or not."""
    want = drawn(shape)
    want[7, 5] = 2.0**20
    have = want.copy()
    have[0, 0] += np.float32(2.0**-4)  # half a unit of the largest
    found = compare(have, FLOAT, want)
    assert found is not None
    assert found.rounding
