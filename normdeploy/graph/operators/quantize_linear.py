"""DequantizeLinear and QuantizeLinear in torch: integers with a step per tensor, per channel or per block."""

from __future__ import annotations

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, axis_of, need, optional
from normdeploy.graph.operators.integer_operators import RANGES


def _spread(call: Call, parameter: Tensor, like: Tensor) -> Tensor:
    """Bring a step or zero point to a shape that broadcasts against ``like``."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis = axis_of(call.attr("axis", 1), like.dim())
    block = call.attr("block_size", 0)
    if block:
        return parameter.repeat_interleave(block, dim=axis).narrow(axis, 0, like.shape[axis])
    return parameter.reshape([-1 if at == axis else 1 for at in range(like.dim())])


def _dequantize(call: Call, inputs: Inputs) -> Tensor:
    stored, steps, zero = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    whole = stored.to(call.dtype)
    if zero is not None:
        whole = whole - _spread(call, zero.to(call.dtype), stored)
    return whole * _spread(call, steps, stored)


def _quantize(call: Call, inputs: Inputs) -> Tensor:
    x, steps, zero = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    target = torch.uint8 if zero is None else zero.dtype
    if target not in RANGES or call.attr("output_dtype", 0) or call.attr("precision", 0):
        raise NotImplementedError("the reference implementation knows the rarer types")
    low, high = RANGES[target]
    rounded = torch.round(x / _spread(call, steps, x))
    shifted = rounded if zero is None else rounded + _spread(call, zero.to(call.dtype), x)
    return shifted.clamp(low, high).to(target)


QUANTIZED: dict[str, Implementation] = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
