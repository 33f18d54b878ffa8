"""Intervals against what they promise: they hold the true number in about 95 of 100 drawn cases."""

from __future__ import annotations

import numpy as np
import pytest

from normdeploy.intervals import resampled, share, share_difference


def test_a_share_by_hand() -> None:
    # Wilson, 10 of 10: low = n / (n + z^2)
    found = share(10, 10)
    assert (found.value, found.high) == (1.0, pytest.approx(1.0))
    assert found.low == pytest.approx(10 / (10 + 1.959964**2))
    assert share(0, 10).high == pytest.approx(1 - found.low)


def covered(make: object, truth: float, rng: np.random.Generator) -> float:
    found = [make(rng) for _ in range(400)]  # type: ignore[operator]
    return float(np.mean([one.low <= truth <= one.high for one in found]))


@pytest.mark.parametrize("p", [0.02, 0.3, 0.97])
def test_a_shares_interval_covers(p: float) -> None:
    rate = covered(lambda rng: share(int(rng.binomial(150, p)), 150), p, np.random.default_rng(0))
    assert 0.9 < rate < 0.995


@pytest.mark.parametrize(("b", "c"), [(0.1, 0.1), (0.05, 0.01), (0.4, 0.1)])
def test_a_paired_differences_interval_covers(b: float, c: float) -> None:
    def draw(rng: np.random.Generator) -> object:
        kinds = rng.choice(3, size=200, p=[b, c, 1 - b - c])
        return share_difference((kinds == 0) | (kinds == 2), (kinds == 1) | (kinds == 2))

    assert 0.9 < covered(draw, b - c, np.random.default_rng(1)) <= 1


def test_a_resampled_ratio_covers_and_is_the_same_every_time() -> None:
    def draw(rng: np.random.Generator) -> object:
        size = rng.uniform(1, 2, 100)
        parts = np.stack([0.04 * size * rng.exponential(size=100), size], 1)
        return resampled(lambda sums: np.sqrt(sums[..., 0] / sums[..., 1]), parts)

    assert 0.88 < covered(draw, 0.2, np.random.default_rng(2)) < 0.995
    parts = np.random.default_rng(3).random((50, 2))
    first, second = (resampled(lambda sums: sums[..., 0] / sums[..., 1], parts) for _ in range(2))
    assert first == second
    assert first.low < first.value < first.high


@pytest.mark.parametrize("rows", [7, 40, 3000])
def test_samples_are_those_that_numpy_draws_however_often_they_are_asked_for(rows: int) -> None:
    """Of few rows they are kept, of many drawn anew."""
    drawn = np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), size=1000)
    for seed in range(3):
        parts = np.random.default_rng(seed).random((rows, 2))
        wanted = np.quantile((drawn @ parts)[:, 0] / (drawn @ parts)[:, 1], [0.025, 0.975])
        found = resampled(lambda sums: sums[..., 0] / sums[..., 1], parts)
        assert (found.low, found.high) == pytest.approx(tuple(wanted), rel=1e-12)
        assert found.value == pytest.approx(parts[:, 0].sum() / parts[:, 1].sum(), rel=1e-12)
