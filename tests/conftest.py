"""What holds for every test."""

import os
import random

import pytest
from hypothesis import settings

# Tests run side by side (pytest -n auto), one core each: several threads apiece would wait for one another.
# Set before torch and onnxruntime are imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same draws in every run: what fails, fails for everybody. --hypothesis-profile=default draws anew.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for code that draws from the global generator
    torch.manual_seed(0)
