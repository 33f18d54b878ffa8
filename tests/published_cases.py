"""onnx's own test of each operator, with what it computes; made, not stored, so that making them has a price."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest

SMALLER = {
    (1, 3, 32, 32, 32): (1, 3, 6, 6, 6),
    (1, 3, 32, 32): (1, 3, 8, 8),
    (1, 3, 28, 28): (1, 3, 8, 8),
}
"""What onnx's pools read: up to 90,000 windows, which a loop of Python goes through for each pool; and as of here."""


@functools.cache
def published_cases() -> list[Any]:
    """Return the cases, pools of :data:`SMALLER` images; their source, which documents onnx, is not read."""
    drawn = np.random.randn

    def smaller(*shape: int) -> Any:
        return drawn(*SMALLER.get(shape, shape))

    with warnings.catch_warnings(), np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # onnx's own case builders divide by zero on purpose
        patch.setattr("onnx.backend.test.case.base.process_snippet", lambda *case: (case[1], ""))
        patch.setattr("numpy.random.randn", smaller)
        from onnx.backend.test.case.node import collect_testcases

        return collect_testcases(None)
