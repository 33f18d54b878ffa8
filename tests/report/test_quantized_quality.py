"""What a quantized file is worth beside the float one: classes, classes at places, and R², with intervals."""

from __future__ import annotations

import numpy as np
import pytest

from normdeploy.building.quantize_step import lost, measured

RNG = np.random.default_rng(0)


def explained(found: np.ndarray, targets: np.ndarray) -> float:
    return float(1 - ((found - targets) ** 2).sum() / ((targets - targets.mean()) ** 2).sum())


@pytest.mark.parametrize("shape", [(300,), (300, 4), (300, 2, 5)])
def test_numbers_are_judged_by_the_share_of_their_variance_that_is_explained(shape: tuple[int, ...]) -> None:
    targets = RNG.normal(2, 3, shape)
    near, far = (targets + RNG.normal(0, noise, shape) for noise in (0.1, 1.0))
    found = measured(near, targets, decides=False)
    assert found.value == pytest.approx(explained(near, targets), rel=1e-12)
    assert found.low < found.value < found.high < 1
    worse = lost(near, far, targets, decides=False)
    assert worse.value == pytest.approx(explained(near, targets) - explained(far, targets), rel=1e-9)
    assert 0 < worse.low < worse.value < worse.high
    assert lost(near, near, targets, decides=False).value == 0


def test_classes_at_places_are_judged_together_by_row() -> None:
    targets = RNG.integers(0, 3, (200, 6))
    right, worse = np.eye(3)[targets], np.eye(3)[targets]
    worse[:50] = np.roll(worse[:50], 1, axis=-1)  # a quarter of the rows is wrong everywhere
    assert measured(right, targets, decides=True).value == 1
    found = measured(worse, targets, decides=True)
    assert found.value == pytest.approx(0.75)
    # places of a row are not independent: 200 rows tell as little as 200 single numbers do
    assert found.high - found.low == pytest.approx(2 * 1.96 * (0.75 * 0.25 / 200) ** 0.5, rel=0.25)
    difference = lost(right, worse, targets, decides=True)
    assert difference.value == pytest.approx(0.25)
    assert difference.low > 0
    single = measured(worse[:, 0], targets[:, 0], decides=True)
    assert single.value == pytest.approx(0.75)
