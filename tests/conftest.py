"""What holds for every test."""

import os
import random

import pytest

# Tests run side by side (pytest -n auto), one core each: several threads apiece would wait for one another.
# Set before torch and onnxruntime are imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for code that draws from the global generator
    torch.manual_seed(0)
