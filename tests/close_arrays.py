"""Arrays that two float64 computations of one network give."""

from __future__ import annotations

import numpy as np


def close(got: np.ndarray, expected: np.ndarray) -> None:
    """Require one shape, and differences of at most 1e-12 of the largest number."""
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-12 * np.abs(expected).max()
