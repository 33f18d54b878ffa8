"""Float32 that is float32: what torch is allowed to multiply in less, it is not while a network is a reference.

CUDA's convolutions multiply in TF32 by default (10 bits of mantissa), and ``torch.set_float32_matmul_precision`` allows
it, or bfloat16, for matrix products there and on processors that have it. The rounding of the eager network is part of
what a file may differ by: an eager network in TF32 would excuse a file that is wrong in the third digit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def _kinds() -> tuple[Any, ...]:
    backends: Any = torch.backends  # their stubs lack what stands in their place at run time
    gpu = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    return (*gpu, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)


@contextlib.contextmanager
def ieee_float32() -> Iterator[None]:
    """Have torch compute float32 in float32, on every device, inside the block; its settings are given back."""
    kinds = _kinds()
    allowed = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, allowed, strict=True):
            kind.fp32_precision = precision
