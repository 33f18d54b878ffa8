"""Integers of 2 to 16 bits and floats of 4 and 8: their ends, and what a number becomes that is stored in them.

Torch has none of 2 and 4 bits: their values stand in int8 here, and those of narrow floats in the floats that stand for
every float. So a tensor does not tell what it is stored in; the graph does.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.exact import constant_tensor

ENDS: dict[ir.DataType, tuple[int, int]] = {
    ir.DataType.INT2: (-2, 1),
    ir.DataType.UINT2: (0, 3),
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}
"""The ends of the integers that quantizers store."""

NARROW_FLOATS: dict[ir.DataType, float] = {
    ir.DataType.FLOAT8E4M3FN: 448.0,
    ir.DataType.FLOAT8E4M3FNUZ: 240.0,
    ir.DataType.FLOAT8E5M2: 57344.0,
    ir.DataType.FLOAT8E5M2FNUZ: 57344.0,
    ir.DataType.FLOAT4E2M1: 6.0,
}
"""Floats of so few bits that what is stored in them is a choice among few numbers, as of integers; their largest."""

FROM_TORCH = {
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.int16: ir.DataType.INT16,
    torch.uint16: ir.DataType.UINT16,
}
"""Integers of 8 and 16 bits by torch's own types for them."""


def quantized_type(node: ir.Node, zero: Tensor | None = None) -> ir.DataType | None:
    """Return what a QuantizeLinear stores: what it names, or the type of its zero point; None where nothing says it.

    Args:
        node: the operator. zero: its zero point as it was computed: where the graph does not say its type, it does.
    """
    named = node.attributes.get_int("output_dtype", 0)
    if named:
        return ir.DataType(named)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    if given is None:
        return ir.DataType.UINT8
    tensor = constant_tensor(given)
    known = given.dtype if tensor is None else tensor.dtype
    return FROM_TORCH.get(zero.dtype) if known is None and zero is not None else known


def integers_in(dtype: ir.DataType) -> torch.dtype:
    """Return the torch type that integers of a narrow type stand in."""
    return next((own for own, other in FROM_TORCH.items() if other is dtype), torch.int8)


def wrapped(x: Tensor, dtype: ir.DataType) -> Tensor:
    """Return what a Cast to fewer than 8 bits makes of numbers: the lowest bits of the nearest integer.

    Halves go away from zero, and infinities and NaN become 0: ONNX does not say, and onnxruntime's kernel does so.
    """
    low, high = ENDS[dtype]
    if x.is_floating_point():
        x = torch.trunc(torch.where(x.isfinite(), x + 0.5 * torch.sign(x), 0.0))
    return ((x.to(torch.int64) - low) % (high - low + 1) + low).to(torch.int8)


def as_narrow_float(x: Tensor, dtype: ir.DataType, *, saturate: bool) -> Tensor:
    """Return the nearest numbers that a narrow float holds, halves to even.

    Args:
        saturate: what lies beyond its ends becomes the nearest one; otherwise what the type has there, infinity or NaN.
    """
    end = NARROW_FLOATS[dtype]
    values = (x.clamp(-end, end) if saturate else x).detach().to(torch.float64).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.array(values.astype(dtype.numpy()), np.float64)).to(x.dtype)
