"""What benchmarks use of the tests: published networks configured small, and timm where no torchvision fits."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from timm_library import load_timm  # noqa: E402 - found by the line above
from zoo_networks import ZOO, shake  # noqa: E402 - likewise

__all__ = ["ZOO", "load_timm", "shake"]
