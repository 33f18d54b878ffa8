"""Intervals of integers, and the types that hold them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.verification.derivation.integers.stepwise import Ints

ENDS = {
    dtype: (int(np.iinfo(dtype.numpy()).min), int(np.iinfo(dtype.numpy()).max))
    for dtype in (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16, ir.DataType.INT32)
} | {ir.DataType.INT64: (-(2**63), 2**63 - 1), ir.DataType.BOOL: (0, 1)}
"""Types of integers and their ends."""


class Unclear(Exception):
    """Nothing can be said; the text is a clause."""


@dataclass(frozen=True)
class Span:
    """Intervals of one value: everything from low to high."""

    low: Ints
    high: Ints
    dtype: ir.DataType
