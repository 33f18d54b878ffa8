"""DequantizeLinear and QuantizeLinear in torch: integers with a step per tensor, per channel or per block."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, axis_of, need, optional
from normdeploy.graph.operators.narrow_types import ENDS, NARROW_FLOATS, as_narrow_float, integers_in, quantized_type


def spread_along(node: ir.Node, parameter: Tensor, like: Tensor) -> Tensor:
    """Bring a quantizer's step or zero point to a shape that broadcasts against ``like``."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis = axis_of(node.attributes.get_int("axis", 1), like.dim())
    block = node.attributes.get_int("block_size", 0)
    if block:
        return parameter.repeat_interleave(block, dim=axis).narrow(axis, 0, like.shape[axis])
    return parameter.reshape([-1 if at == axis else 1 for at in range(like.dim())])


def _dequantize(call: Call, inputs: Inputs) -> Tensor:
    stored, steps, zero = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    whole = stored.to(call.dtype)
    if zero is not None:
        whole = whole - spread_along(call.node, zero.to(call.dtype), stored)
    return whole * spread_along(call.node, steps, stored)


def _quantize(call: Call, inputs: Inputs) -> Tensor:
    x, steps, zero = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    target = quantized_type(call.node, zero)
    steps = x / spread_along(call.node, steps, x)
    shift = 0.0 if zero is None else spread_along(call.node, zero.to(call.dtype), x)
    if target in NARROW_FLOATS:  # their zero point is zero
        return as_narrow_float(steps + shift, target, saturate=bool(call.attr("saturate", 1)))
    if target not in ENDS:
        raise NotImplementedError(f"a quantizer to {target}")
    low, high = ENDS[target]
    whole = torch.round(steps) + shift
    # what NaN becomes is no one's to say: runtimes take the lowest integer, torch's conversion whatever comes out
    return torch.where(whole.isnan(), float(low), whole).clamp(low, high).to(integers_in(target))


QUANTIZED: dict[str, Implementation] = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
