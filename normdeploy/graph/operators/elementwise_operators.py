"""Elementwise operators in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.narrow_types import ENDS, NARROW_FLOATS, as_narrow_float, wrapped

_WHOLE = 8
"""Bits from which on torch has an integer type of its own."""


def _unary(function: Callable[[Tensor], Tensor]) -> Implementation:
    return lambda call, inputs: function(need(inputs, 0))


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Implementation:
    return lambda call, inputs: function(need(inputs, 0), need(inputs, 1))


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Implementation:
    return lambda call, inputs: reduce(function, [item for item in inputs if item is not None])


def _div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _pow(call: Call, inputs: Inputs) -> Tensor:
    base, exponent = need(inputs, 0), need(inputs, 1)
    if base.is_floating_point():
        return torch.pow(base, exponent.to(base.dtype))
    return torch.pow(base.to(torch.float64), exponent.to(torch.float64)).to(base.dtype)


def _mod(call: Call, inputs: Inputs) -> Tensor:
    a, b = need(inputs, 0), need(inputs, 1)
    return torch.fmod(a, b) if call.attr("fmod", 0) else torch.remainder(a, b)


def _mean(call: Call, inputs: Inputs) -> Tensor:
    terms = [item for item in inputs if item is not None]
    return reduce(torch.add, terms) / len(terms)


def _clip(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    low: Any = call.attr("min") if call.opset < 11 else optional(inputs, 1)
    high: Any = call.attr("max") if call.opset < 11 else optional(inputs, 2)
    for bound, function in ((low, torch.maximum), (high, torch.minimum)):
        if bound is not None:
            x = function(x, torch.as_tensor(bound, dtype=x.dtype, device=x.device))
    return x


def _gelu(call: Call, inputs: Inputs) -> Tensor:
    return F.gelu(need(inputs, 0), approximate=call.attr("approximate", "none"))


def _hard_sigmoid(call: Call, inputs: Inputs) -> Tensor:
    return torch.clamp(call.attr("alpha", 0.2) * need(inputs, 0) + call.attr("beta", 0.5), 0, 1)


def _hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


def _swish(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    return x * torch.sigmoid(call.attr("alpha", 1.0) * x)


def _elu(call: Call, inputs: Inputs) -> Tensor:
    x, alpha = need(inputs, 0), call.attr("alpha", 1.0)
    return torch.where(x > 0, x, alpha * torch.expm1(torch.minimum(x, torch.zeros_like(x))))


def _celu(call: Call, inputs: Inputs) -> Tensor:
    return F.celu(need(inputs, 0), alpha=call.attr("alpha", 1.0))


def _selu(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    alpha: float = call.attr("alpha", 1.6732631921768188)
    gamma: float = call.attr("gamma", 1.0507010221481323)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.minimum(x, torch.zeros_like(x))))


def _leaky_relu(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    return torch.where(x >= 0, x, call.attr("alpha", 0.01) * x)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x >= 0, x, slope * x)


def _thresholded_relu(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    return torch.where(x > call.attr("alpha", 1.0), x, torch.zeros_like(x))


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _where(call: Call, inputs: Inputs) -> Tensor:
    return torch.where(need(inputs, 0).bool(), need(inputs, 1), need(inputs, 2))


def torch_dtype(data_type: ir.DataType, floats: torch.dtype) -> torch.dtype:
    """Return the torch dtype of an ONNX one, every float standing as ``floats``."""
    if data_type in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return floats
    names = {
        ir.DataType.BOOL: torch.bool,
        ir.DataType.INT8: torch.int8,
        ir.DataType.INT16: torch.int16,
        ir.DataType.INT32: torch.int32,
        ir.DataType.INT64: torch.int64,
        ir.DataType.UINT8: torch.uint8,
        ir.DataType.UINT16: torch.uint16,
        ir.DataType.UINT32: torch.uint32,
        ir.DataType.UINT64: torch.uint64,
    }
    if data_type not in names:
        raise NotImplementedError(f"dtype {data_type} has no torch counterpart here")
    return names[data_type]


def _cast(call: Call, inputs: Inputs) -> Tensor:
    return _stored_as(call, need(inputs, 0), ir.DataType(call.attr("to")))


def _stored_as(call: Call, x: Tensor, target: ir.DataType) -> Tensor:
    if target in NARROW_FLOATS:
        return as_narrow_float(x.to(call.dtype), target, saturate=bool(call.attr("saturate", 1)))
    if target in ENDS and target.bitwidth < _WHOLE:
        return wrapped(x, target)
    return x.to(torch_dtype(target, call.dtype))


def _cast_like(call: Call, inputs: Inputs) -> Tensor:
    like = call.node.inputs[1]
    tensor = None if like is None else constant_tensor(like)
    known = tensor.dtype if tensor is not None else None if like is None else like.dtype
    if known in NARROW_FLOATS or (known in ENDS and known.bitwidth < _WHOLE):  # torch's type does not tell these
        return _stored_as(call, need(inputs, 0), known)
    return need(inputs, 0).to(need(inputs, 1).dtype)


def _dropout(call: Call, inputs: Inputs) -> tuple[Tensor, Tensor]:
    training = optional(inputs, 2)
    if training is not None and bool(training):
        raise NotImplementedError("Dropout in training mode is random and has no reference value")
    x = need(inputs, 0)
    if call.opset < 12:  # in inference nothing was dropped and nothing marked as kept; below 10 in x's own type
        return x, torch.zeros_like(x, dtype=torch.bool if call.opset >= 10 else x.dtype)
    return x, torch.ones_like(x, dtype=torch.bool)


def _is_inf(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    positive, negative = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    return (torch.isposinf(x) & bool(positive)) | (torch.isneginf(x) & bool(negative))


def _held(call: Call, inputs: Inputs) -> Tensor:
    """Return what an optional holds: a tensor is its own optional here; one that holds nothing is left to onnx."""
    if not inputs or inputs[0] is None:
        raise NotImplementedError("an empty optional")
    return inputs[0]


ELEMENTWISE: dict[str, Implementation] = {
    "Abs": _unary(torch.abs),
    "Acos": _unary(torch.acos),
    "Acosh": _unary(torch.acosh),
    "Add": _binary(torch.add),
    "And": _binary(torch.logical_and),
    "Asin": _unary(torch.asin),
    "Asinh": _unary(torch.asinh),
    "Atan": _unary(torch.atan),
    "Atanh": _unary(torch.atanh),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _unary(torch.ceil),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _unary(torch.cos),
    "Cosh": _unary(torch.cosh),
    "Div": _binary(_div),
    "Dropout": _dropout,
    "Elu": _elu,
    "Equal": _binary(torch.eq),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Floor": _unary(torch.floor),
    "Gelu": _gelu,
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _unary(_hard_swish),
    "Identity": _unary(lambda x: x),
    "IsInf": _is_inf,
    "IsNaN": _unary(torch.isnan),
    "LeakyRelu": _leaky_relu,
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "Log": _unary(torch.log),
    "Max": _variadic(torch.maximum),
    "Mean": _mean,
    "Min": _variadic(torch.minimum),
    "Mish": _unary(lambda x: x * torch.tanh(_softplus(x))),
    "Mod": _mod,
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "Not": _unary(torch.logical_not),
    "Optional": _held,
    "OptionalGetElement": _held,
    "OptionalHasElement": lambda call, inputs: torch.tensor(bool(inputs) and inputs[0] is not None),
    "Or": _binary(torch.logical_or),
    "PRelu": _binary(_prelu),
    "Pow": _pow,
    "Reciprocal": _unary(torch.reciprocal),
    "Relu": _unary(torch.relu),
    "Round": _unary(torch.round),
    "Selu": _selu,
    "Sigmoid": _unary(torch.sigmoid),
    "Sign": _unary(torch.sign),
    "Sin": _unary(torch.sin),
    "Sinh": _unary(torch.sinh),
    "Softplus": _unary(_softplus),
    "Softsign": _unary(lambda x: x / (1 + torch.abs(x))),
    "Sqrt": _unary(torch.sqrt),
    "Sub": _binary(torch.sub),
    "Sum": _variadic(torch.add),
    "Swish": _swish,
    "Tan": _unary(torch.tan),
    "Tanh": _unary(torch.tanh),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
    "Xor": _binary(torch.logical_xor),
}
