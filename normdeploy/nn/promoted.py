"""What stands for a low-precision float where something is computed in float64."""

from __future__ import annotations

from typing import Any

import torch

LOW_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
_LOW_COMPLEX = frozenset({torch.complex32, torch.complex64})
PROMOTED = dict.fromkeys(LOW_FLOATS, torch.float64) | dict.fromkeys(_LOW_COMPLEX, torch.complex128)


def promoted(value: Any) -> Any:
    """Return a low-precision tensor in float64 (complex128), a low dtype's promoted one, anything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype in PROMOTED:
        return value.to(PROMOTED[value.dtype])
    if isinstance(value, torch.dtype):
        return PROMOTED.get(value, value)
    return value
