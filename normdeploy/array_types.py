"""Types of arrays and of sizes, by the names that annotations use throughout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Arrays = dict[str, Array]
"""Arrays by the names of inputs, outputs or tensors."""
Shape = tuple[int, ...]
