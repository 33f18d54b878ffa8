"""Whether a quantizer is the inner one of two, which the outer one's chain takes along."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.affine_node import is_affine
from normdeploy.rewrite.integer.integer_makers import Quantizer, quantizer_of
from normdeploy.rewrite.integer.integer_source import Stays

_FOLLOWED = ("Relu", "Clip", "LeakyRelu", "Add", "Mul", "Sub", "Div", "BatchNormalization", "Neg")
_LONGEST = 32


def leads_to_quantizer(quantizer: Quantizer) -> bool:
    """Tell whether all that reads a QuantizeLinear's integers is one chain of maps and clamps to another quantizer."""
    if quantizer.dtype is None:
        return False
    value = quantizer.result
    for _ in range(_LONGEST):
        readers = list(value.uses())
        if len(readers) != 1 or value.is_graph_output():
            return False
        node: ir.Node = readers[0].node
        if value is quantizer.result:
            if not is_standard(node, "DequantizeLinear"):
                return False
        else:
            try:
                if quantizer_of(node) is not None and node.inputs[0] is value:
                    return True
            except Stays:
                return False
            if not (is_affine(node) or is_standard(node, *_FOLLOWED)):
                return False
        value = node.outputs[0]
    return False
