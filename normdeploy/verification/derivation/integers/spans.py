"""Intervals of integers, and the types that hold them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph.operators import narrow_types
from normdeploy.verification.derivation.integers.stepwise import Ints

_FOLLOWED = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16)

ENDS = {
    **{dtype: narrow_types.ENDS[dtype] for dtype in _FOLLOWED},
    ir.DataType.INT32: (-(2**31), 2**31 - 1),
    ir.DataType.INT64: (-(2**63), 2**63 - 1),
    ir.DataType.BOOL: (0, 1),
}
"""Types of integers that are followed here, and their ends."""


class Unclear(Exception):
    """Nothing can be said; the text is a clause."""


@dataclass(frozen=True)
class Span:
    """Intervals of one value: everything from low to high."""

    low: Ints
    high: Ints
    dtype: ir.DataType
