"""Operators on 8-bit integers with a step and a zero point each: the real operator between two quantizations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.contrib.attention import attention_of
from normdeploy.graph.operators.contrib.dense import first, last, one
from normdeploy.graph.operators.integer_operators import qlinear_conv as standard_conv
from normdeploy.graph.operators.integer_operators import real, stored
from normdeploy.graph.operators.normalization import NORMALIZATION
from normdeploy.graph.operators.pooling import POOLING
from normdeploy.graph.operators.quantize_linear import QUANTIZED


def _binary(function: Callable[[Tensor, Tensor], Tensor], call: Call, inputs: Inputs) -> Tensor:
    """f(A, B): inputs A, its step and zero point, B and its own, then the result's."""
    a = real(call, need(inputs, 0), need(inputs, 1), optional(inputs, 2))
    b = real(call, need(inputs, 3), need(inputs, 4), optional(inputs, 5))
    return stored(call, function(a, b), need(inputs, 6), optional(inputs, 7), like=need(inputs, 0))


def _unary(function: Callable[[Call, Tensor], Tensor], call: Call, inputs: Inputs) -> Tensor:
    """f(X): inputs X, its step and zero point, then the result's."""
    x = real(call, need(inputs, 0), need(inputs, 1), optional(inputs, 2))
    return stored(call, function(call, x), need(inputs, 3), optional(inputs, 4), like=need(inputs, 0))


def _pooled(name: str, call: Call, x: Tensor) -> Tensor:
    pool, at_the_end = POOLING[name], call.attr("channels_last", 0)
    y = one(pool(call, [first(x) if at_the_end else x]))
    return last(y) if at_the_end else y


def _leaky(call: Call, x: Tensor) -> Tensor:
    return torch.where(x >= 0, x, call.attr("alpha", 0.01) * x)


def _softmax(call: Call, x: Tensor) -> Tensor:
    return one(NORMALIZATION["Softmax"](replace(call, opset=int(call.attr("opset"))), [x]))


def _mean(call: Call, x: Tensor) -> Tensor:
    axes = [int(axis) for axis in call.attr("axes", range(x.dim()))]
    return x.mean(axes, keepdim=bool(call.attr("keepdims", 1)))


def _concat(call: Call, inputs: Inputs) -> Tensor:
    """Inputs: the result's step and zero point, then each part with its own."""
    parts = [
        real(call, need(inputs, at), need(inputs, at + 1), optional(inputs, at + 2)) for at in range(2, len(inputs), 3)
    ]
    return stored(
        call, torch.cat(parts, dim=call.attr("axis")), need(inputs, 0), optional(inputs, 1), like=need(inputs, 2)
    )


def _where(call: Call, inputs: Inputs) -> Tensor:
    x = real(call, need(inputs, 1), need(inputs, 2), optional(inputs, 3))
    y = real(call, need(inputs, 4), need(inputs, 5), optional(inputs, 6))
    chosen = torch.where(need(inputs, 0).bool(), x, y)
    return stored(call, chosen, need(inputs, 7), optional(inputs, 8), like=need(inputs, 1))


def _conv(call: Call, inputs: Inputs) -> Tensor:
    """QLinearConv, its values with channels last where the node says so; the kernel keeps its channels in front."""
    if not call.attr("channels_last", 0):
        return standard_conv(call, inputs)
    return last(standard_conv(call, [first(need(inputs, 0)), *inputs[1:]]))


def _gemm(call: Call, inputs: Inputs) -> Tensor:
    """Alpha A B + C, with C in steps of alpha a b; quantized where the result has a step."""
    a = real(call, need(inputs, 0), need(inputs, 1), optional(inputs, 2))
    b_step, b_zero = need(inputs, 4), optional(inputs, 5)
    transposed = bool(call.attr("transB", 0))
    columns = 0 if transposed else 1
    b = real(call, need(inputs, 3), b_step, b_zero, axis=columns)
    alpha = float(call.attr("alpha", 1.0))
    y = alpha * ((a.T if call.attr("transA", 0) else a) @ (b.T if transposed else b))
    c, y_step = optional(inputs, 6), optional(inputs, 7)
    if c is not None:
        y = y + c.to(call.dtype) * (alpha * need(inputs, 1).reshape(()) * b_step.reshape(-1))
    return y if y_step is None else stored(call, y, y_step, optional(inputs, 8), like=need(inputs, 0))


def _attention(call: Call, inputs: Inputs) -> list[Tensor]:
    x = real(call, need(inputs, 0), need(inputs, 3), optional(inputs, 6))
    w = real(call, need(inputs, 1), need(inputs, 4), optional(inputs, 7), axis=1)
    return attention_of(call, x @ w + need(inputs, 2), optional(inputs, 5), optional(inputs, 8), None)


QLINEAR: dict[str, Implementation] = {
    "DequantizeLinear": QUANTIZED["DequantizeLinear"],
    "QAttention": _attention,
    "QGemm": _gemm,
    "QLinearAdd": partial(_binary, torch.add),
    "QLinearAveragePool": partial(_unary, partial(_pooled, "AveragePool")),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": partial(_unary, partial(_pooled, "GlobalAveragePool")),
    "QLinearLeakyRelu": partial(_unary, _leaky),
    "QLinearMul": partial(_binary, torch.mul),
    "QLinearReduceMean": partial(_unary, _mean),
    "QLinearSigmoid": partial(_unary, lambda call, x: torch.sigmoid(x)),
    "QLinearSoftmax": partial(_unary, _softmax),
    "QLinearWhere": _where,
    "QuantizeLinear": QUANTIZED["QuantizeLinear"],
}
