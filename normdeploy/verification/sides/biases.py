"""A file in float64 with its biases as onnxruntime rounds them.

Its optimizer WeightBiasQuantization stores the float bias of a layer on quantized values as int32, in steps of the
input's times the weight's::

    b' = round(b / (s_x s_w)) s_x s_w

which is what a QLinearConv asks for. So what that optimizer does to an output can be computed, instead of allowed for.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import Evaluator, constant64
from normdeploy.graph.evaluate import StandIn
from normdeploy.graph.operator_evaluation import evaluate_node
from normdeploy.graph.traits import is_dequantizer, is_standard

_BIAS = 2
"""Which input of Conv, ConvTranspose and Gemm is the bias."""


def rounded_biases(evaluator: Evaluator) -> dict[ir.Node, StandIn]:
    """Return what stands for the layers of a graph whose float bias is rounded."""

    def stand_in(node: ir.Node, bias: Tensor) -> StandIn:
        def compute(inputs: Sequence[Tensor | None]) -> Tensor:
            given = [*inputs[:_BIAS], bias, *inputs[_BIAS + 1 :]]
            imports = evaluator.graph.opset_imports
            return evaluate_node(node, given, dtype=evaluator.dtype, opset_imports=imports)[0]

        return compute

    found = {node: _rounded(node) for node in evaluator.graph if is_standard(node, "Conv", "ConvTranspose", "Gemm")}
    return {node: stand_in(node, bias.to(evaluator.dtype)) for node, bias in found.items() if bias is not None}


def _rounded(node: ir.Node) -> Tensor | None:
    """Return a layer's bias in whole steps; None where it is none of floats, or the layer has no quantized operands."""
    bias = constant64(node.inputs[_BIAS]) if len(node.inputs) > _BIAS else None
    steps = [_step(value) for value in node.inputs[:_BIAS]]
    if bias is None or steps[0] is None or steps[1] is None or steps[0].numel() != 1:
        return None
    step = steps[0].reshape(()) * steps[1].reshape(-1)
    values = torch.from_numpy(bias).to(torch.float64)
    if step.numel() not in (1, values.numel()):
        return None
    return (torch.round(values.reshape(-1) / step) * step).reshape(values.shape)


def _step(value: ir.Value | None) -> Tensor | None:
    """Return the steps of a value that DequantizeLinear makes."""
    node = None if value is None else value.producer()
    if node is None or not is_dequantizer(node):
        return None
    block = node.attributes.get_int("block_size", 0)
    scale = None if block else constant64(node.inputs[1])
    return None if scale is None else torch.from_numpy(scale).to(torch.float64)
