"""The learning rate rises, then falls like half a cosine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normdeploy.train.optimizer import learning_rate


def test_by_hand() -> None:
    rates = [learning_rate(step, 10, peak=2.0, warmup=0.2) for step in range(10)]
    assert rates[:2] == [1.0, 2.0]
    assert rates[2] == 2.0
    assert rates[6] == pytest.approx(1.0)
    assert rates[9] == pytest.approx(1 + math.cos(math.pi * 7 / 8))


@given(st.integers(1, 200), st.floats(0, 0.99), st.floats(1e-6, 1))
def test_never_above_the_peak_nor_below_zero(steps: int, warmup: float, peak: float) -> None:
    rates = [learning_rate(step, steps, peak=peak, warmup=warmup) for step in range(steps)]
    assert all(0 <= rate <= peak for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
