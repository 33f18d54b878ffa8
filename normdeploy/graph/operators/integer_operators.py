"""The standard's operators on integers: QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger, DynamicQuantizeLinear.

Integers are multiplied in float64, which holds their sums exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, Stored, need, optional
from normdeploy.graph.operators.linear_operators import LINEAR
from normdeploy.graph.operators.narrow_types import ENDS, FROM_TORCH


def spread(parameter: Tensor, rank: int, axis: int) -> Tensor:
    """Bring a step or zero point, one number or one per entry of an axis, to a shape that broadcasts."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    if parameter.dim() > 1:
        return parameter
    axis %= rank
    return parameter.reshape([-1 if at == axis else 1 for at in range(rank)])


def centred(call: Call, x: Tensor, zero: Tensor | None, *, axis: int = 1) -> Tensor:
    """Return x - zero in floats."""
    whole = x.to(call.dtype)
    return whole if zero is None else whole - spread(zero.to(call.dtype), x.dim(), axis)


def real(call: Call, x: Tensor, step: Tensor, zero: Tensor | None, *, axis: int = 1) -> Tensor:
    """Return what stored integers stand for: (x - zero) step."""
    return centred(call, x, zero, axis=axis) * spread(step, x.dim(), axis)


def stored(call: Call, y: Tensor, step: Tensor, zero: Tensor | None, *, like: Tensor, axis: int = 1) -> Tensor:
    """Return the integers that stand for y: round(y / step) + zero, halves to even, cut to the type's ends.

    Where the call asks for it, they stay floats, not rounded or not cut either.

    Args:
        like: of the type to store where there is no zero point.
    """
    target = like.dtype if zero is None else zero.dtype
    low, high = ENDS[FROM_TORCH[target]]
    whole = y / spread(step, y.dim(), axis)
    whole = torch.round(whole) if call.stored is Stored.WHOLE else whole
    whole = whole if zero is None else whole + spread(zero.to(call.dtype), y.dim(), axis)
    if call.stored is Stored.FREE:
        return signed(whole, spread(zero, y.dim(), axis) if zero is not None else zero, low, high)
    cut = whole.clamp(low, high)
    return cut if call.stored is Stored.CUT else cut.to(target)


def signed(whole: Tensor, zero: Tensor | None, low: int, high: int) -> Tensor:
    """Return whole numbers of steps, cut where their type begins or ends at zero: quantizers leave a Relu out there.

    Args:
        whole: x / step + zero.
        zero: broadcasts against them; 0 by default.
        low, high: the ends of the type.
    """
    point = torch.zeros((), dtype=whole.dtype) if zero is None else zero.to(whole.dtype)
    least = torch.where(point == low, float(low), -torch.inf).to(whole.dtype)
    most = torch.where(point == high, float(high), torch.inf).to(whole.dtype)
    return torch.minimum(torch.maximum(whole, least), most)


def qlinear_conv(call: Call, inputs: Inputs) -> Tensor:
    """Conv of x (inputs 0 to 2) by w (3 to 5, a step per output channel perhaps) to the result's steps (6, 7)."""
    x = centred(call, need(inputs, 0), optional(inputs, 2))
    w = centred(call, need(inputs, 3), optional(inputs, 5), axis=0)
    bias = optional(inputs, 8)
    whole: Any = LINEAR["Conv"](call, [x, w, None if bias is None else bias.to(call.dtype)])
    steps = spread(need(inputs, 1) * need(inputs, 4).reshape(-1), x.dim(), 1)
    return stored(call, whole * steps, need(inputs, 6), optional(inputs, 7), like=need(inputs, 0))


def _qlinear_matmul(call: Call, inputs: Inputs) -> Tensor:
    a = real(call, need(inputs, 0), need(inputs, 1), optional(inputs, 2), axis=-2)
    b = real(call, need(inputs, 3), need(inputs, 4), optional(inputs, 5), axis=-1)
    return stored(call, a @ b, need(inputs, 6), optional(inputs, 7), like=need(inputs, 0), axis=-2)


def _conv_integer(call: Call, inputs: Inputs) -> Tensor:
    x = centred(call, need(inputs, 0), optional(inputs, 2))
    w = centred(call, need(inputs, 1), optional(inputs, 3), axis=0)
    whole: Any = LINEAR["Conv"](call, [x, w])
    return torch.round(whole).to(torch.int32)


def _matmul_integer(call: Call, inputs: Inputs) -> Tensor:
    a = centred(call, need(inputs, 0), optional(inputs, 2), axis=-2)
    b = centred(call, need(inputs, 1), optional(inputs, 3), axis=-1)
    return torch.round(a @ b).to(torch.int32)


def dynamically_quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x as uint8 in the 256 steps between its ends, zero among them; the step; the zero point.

    The step is a float32, as the operator stores it: a unit of its last place decides halves.
    """
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    step = ((high - low) / 255).to(torch.float32).to(x.dtype)
    step = torch.where(step == 0, torch.ones_like(step), step)
    zero = torch.round(-low / step).clamp(0, 255)
    return (torch.round(x / step) + zero).clamp(0, 255).to(torch.uint8), step, zero.to(torch.uint8)


INTEGERS: dict[str, Implementation] = {
    "ConvInteger": _conv_integer,
    "DynamicQuantizeLinear": lambda call, inputs: dynamically_quantized(need(inputs, 0)),
    "MatMulInteger": _matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
