"""Products with what was fused into them: activations, sums, transpositions; convolutions with channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.linear_operators import LINEAR
from normdeploy.graph.operators.pooling import POOLING
from normdeploy.graph.operators.windows import pad_spatial

PARAMETERS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "Elu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "HardSwish": (),
    "LeakyRelu": (("alpha", 0.01),),
    "Relu": (),
    "Selu": (("alpha", 1.6732631921768188), ("gamma", 1.0507010221481323)),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": (("alpha", 1.0),),
}
"""Activations that onnxruntime joins with a product or a convolution: names and defaults of their parameters, in order.

A Clip, whose two have no default, is one besides.
"""

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "Clip": lambda x, low, high: x.clamp(low, high),
    "Elu": functional.elu,
    "HardSigmoid": lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1),
    "HardSwish": functional.hardswish,
    "LeakyRelu": functional.leaky_relu,
    "Relu": torch.relu,
    "Selu": lambda x, alpha, gamma: gamma * functional.elu(x, alpha),
    "Sigmoid": torch.sigmoid,
    "Softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "Softsign": functional.softsign,
    "Tanh": torch.tanh,
    "ThresholdedRelu": lambda x, alpha: torch.where(x > alpha, x, torch.zeros_like(x)),
}


def activated(call: Call, x: Tensor, parameters: list[float]) -> Tensor:
    """Return x behind the activation that a node names; the node's ``activation`` is absent for none.

    Args:
        parameters: of the activation, in order; the last may be left out.
    """
    name = call.attr("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise NotImplementedError(name)
    return _ACTIVATIONS[name](x, *filled_up(name, parameters))


def filled_up(activation: str, parameters: Sequence[float]) -> list[float]:
    """Return an activation's parameters, in order, with the defaults of the last ones, which may be left out."""
    return [*parameters, *(default for _, default in PARAMETERS.get(activation, ())[len(parameters) :])]


def parameters_of(attributes: Callable[[str, float], float], activation: str) -> list[float]:
    """Return the parameters of the activation of a FusedGemm, which names each.

    Args:
        attributes: returns an attribute, by its name and default. activation: its name; "" for none.
    """
    return [attributes(f"activation_{name}", default) for name, default in PARAMETERS.get(activation, ())]


def one(result: object) -> Tensor:
    """Return the result of an operator that has one."""
    assert isinstance(result, Tensor)
    return result


def first(x: Tensor) -> Tensor:
    """Return x with its last axis (the channels of a layout with channels last) moved to place 1."""
    return x.movedim(-1, 1)


def last(x: Tensor) -> Tensor:
    """Undo `first`."""
    return x.movedim(1, -1)


def _parameters(call: Call) -> list[float]:
    return [float(value) for value in call.attr("activation_params", [])]


def fused_conv(call: Call, inputs: Inputs) -> Tensor:
    """Conv(x, w, b) + z, activated."""
    y, z = one(LINEAR["Conv"](call, inputs[:3])), optional(inputs, 3)
    return activated(call, y if z is None else y + z, _parameters(call))


def _nhwc_conv(call: Call, inputs: Inputs) -> Tensor:
    """FusedConv of channels last in x, z and y; the weight keeps its channels in front."""
    z = optional(inputs, 3)
    return last(fused_conv(call, [first(need(inputs, 0)), *inputs[1:3], None if z is None else first(z)]))


def _nhwc_max_pool(call: Call, inputs: Inputs) -> Tensor:
    return last(one(POOLING["MaxPool"](call, [first(need(inputs, 0))])))


def _fused_gemm(call: Call, inputs: Inputs) -> Tensor:
    return activated(call, one(LINEAR["Gemm"](call, inputs)), parameters_of(call.attr, call.attr("activation", "")))


def _operand(call: Call, x: Tensor, side: str) -> Tensor:
    """An operand of a FusedMatMul: its first axis moved behind the batch axes, its last two exchanged, as asked for."""
    if call.attr(f"transBatch{side}", 0):
        x = x.movedim(0, -2)
    return x.transpose(-1, -2) if call.attr(f"trans{side}", 0) and x.dim() > 1 else x


def _fused_matmul(call: Call, inputs: Inputs) -> Tensor:
    """Alpha a b, each with its axes moved as asked for."""
    a, b = _operand(call, need(inputs, 0), "A"), _operand(call, need(inputs, 1), "B")
    return torch.matmul(a, b) * float(call.attr("alpha", 1.0))


def _gemm_fast_gelu(call: Call, inputs: Inputs) -> Tensor:
    y, bias = torch.matmul(need(inputs, 0), need(inputs, 1)), optional(inputs, 2)
    return functional.gelu(y if bias is None else y + bias, approximate="tanh")


_PADS = 2
"""Place of the pads among the inputs of a ConvTransposeWithDynamicPads."""


def _conv_transpose_with_pads(call: Call, inputs: Inputs) -> Tensor:
    """ConvTranspose whose pads are an input: what the operator without pads gives, less its borders."""
    if call.attr("auto_pad", "NOTSET") != "NOTSET":
        raise NotImplementedError("auto_pad")
    pads, bias = optional(inputs, _PADS), optional(inputs, 3)
    y = one(LINEAR["ConvTranspose"](call, inputs[:2]))
    if pads is not None:
        cuts = [-int(size) for size in pads.tolist()]
        y = pad_spatial(y, cuts[: len(cuts) // 2], cuts[len(cuts) // 2 :])
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.dim() - 2))


def _distances(call: Call, inputs: Inputs) -> Tensor:
    """Distances of every row of a to every row of b."""
    differences = need(inputs, 0).unsqueeze(1) - need(inputs, 1).unsqueeze(0)
    squares = differences.square().sum(-1)
    metric = call.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise NotImplementedError(metric)
    return squares.sqrt() if metric == "euclidean" else squares


DENSE: dict[str, Implementation] = {
    "CDist": _distances,
    "ConvTransposeWithDynamicPads": _conv_transpose_with_pads,
    "FusedConv": fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "GemmFastGelu": _gemm_fast_gelu,
    "Inverse": lambda call, inputs: torch.linalg.inv(need(inputs, 0)),
    "NhwcConv": _nhwc_conv,
    "NhwcFusedConv": _nhwc_conv,
    "NhwcMaxPool": _nhwc_max_pool,
    "TransposeMatMul": _fused_matmul,
}
