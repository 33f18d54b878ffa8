"""Operators of com.microsoft that onnxruntime's optimizers and transformers tools write, by their definitions.

Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.linear import LINEAR

DOMAIN = "com.microsoft"

_ACTIVATIONS: dict[str, Callable[[Tensor, list[float]], Tensor]] = {
    "": lambda x, _: x,
    "Relu": lambda x, _: torch.relu(x),
    "Sigmoid": lambda x, _: torch.sigmoid(x),
    "Tanh": lambda x, _: torch.tanh(x),
    "LeakyRelu": lambda x, p: functional.leaky_relu(x, p[0] if p else 0.01),
    "Clip": lambda x, p: x.clamp(p[0], p[1]),
    "HardSigmoid": lambda x, p: (p[0] * x + p[1]).clamp(0, 1),
}


def _activated(call: Call, x: Tensor, parameters: list[float]) -> Tensor:
    name = call.attr("activation", "")
    if name not in _ACTIVATIONS:
        raise NotImplementedError(name)
    return _ACTIVATIONS[name](x, parameters)


def _one(result: object) -> Tensor:
    assert isinstance(result, Tensor)
    return result


def _fused_conv(call: Call, inputs: Inputs) -> Tensor:
    """Conv(x, w, b) + z, activated."""
    y, z = _one(LINEAR["Conv"](call, inputs[:3])), optional(inputs, 3)
    return _activated(call, y if z is None else y + z, list(call.attr("activation_params", [])))


def _fused_gemm(call: Call, inputs: Inputs) -> Tensor:
    parameters = [call.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return _activated(call, _one(LINEAR["Gemm"](call, inputs)), [p for p in parameters if p is not None])


def _fused_matmul(call: Call, inputs: Inputs) -> Tensor:
    """Alpha a b, each with its last two axes exchanged where asked for."""
    if call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        raise NotImplementedError("transBatchA, transBatchB")
    a, b = need(inputs, 0), need(inputs, 1)
    a = a.transpose(-1, -2) if call.attr("transA", 0) and a.dim() > 1 else a
    b = b.transpose(-1, -2) if call.attr("transB", 0) and b.dim() > 1 else b
    return torch.matmul(a, b) * float(call.attr("alpha", 1.0))


def _biased(inputs: Inputs) -> Tensor:
    x, bias = need(inputs, 0), optional(inputs, 1)
    return x if bias is None else x + bias


def _skipped(inputs: Inputs, bias: Tensor | None) -> Tensor:
    total = need(inputs, 0) + need(inputs, 1)
    return total if bias is None else total + bias


def _skip_layer_normalization(call: Call, inputs: Inputs) -> list[Tensor]:
    """LayerNorm(x + skip + bias); its statistics; the sum."""
    total = _skipped(inputs, optional(inputs, 4))
    mean = total.mean(-1, keepdim=True)
    inverse = torch.rsqrt((total - mean).square().mean(-1, keepdim=True) + call.attr("epsilon", 1e-12))
    y, beta = (total - mean) * inverse * need(inputs, 2), optional(inputs, 3)
    return [y if beta is None else y + beta, mean, inverse, total]


def _skip_simplified_layer_normalization(call: Call, inputs: Inputs) -> list[Tensor]:
    total = _skipped(inputs, optional(inputs, 3))
    inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + call.attr("epsilon", 1e-12))
    return [total * inverse * need(inputs, 2), torch.zeros_like(inverse), inverse, total]


CONTRIB: dict[str, Implementation] = {
    "BiasGelu": lambda call, inputs: functional.gelu(_biased(inputs)),
    "FastGelu": lambda call, inputs: functional.gelu(_biased(inputs), approximate="tanh"),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": lambda call, inputs: functional.gelu(need(inputs, 0)),
    "QuickGelu": lambda call, inputs: need(inputs, 0) * torch.sigmoid(call.attr("alpha", 1.702) * need(inputs, 0)),
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_normalization,
}
