"""A bias of zeros leaves its convolution: y + 0 = y, and the runtime adds one array less.

Convolutions (Conv, ConvTranspose) and Gemm whose constant addend holds zeros only lose that input. Gemm's C may be
wider than the product only by broadcasting, which zeros do not need. A MatMul's bias is an Add behind it, and so is a
mask that masks nothing: where its zeros make the product no larger, it leaves.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import ExactTensor, constant_tensor
from normdeploy.graph.edit import drop_if_unread, take_out, take_place
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_of


class DropZeroBiases(ir.passes.InPlacePass):
    """Take constant addends of zeros out of linear operators."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Look at every linear operator of every graph."""
        modified = False
        for node in nodes_of(model):
            if is_standard(node, "Add"):
                modified |= _without_zeros(node)
                continue
            linear = linear_of(node)
            if linear is None or linear.form is Form.RECURRENT or linear.bias != len(node.inputs) - 1:
                continue  # an input behind the bias keeps its place
            bias = node.inputs[linear.bias]
            if bias is None or not _is_zeros(bias):
                continue
            node.resize_inputs(linear.bias)
            drop_if_unread(bias)
            modified = True
        return ir.passes.PassResult(model, modified)


def _is_zeros(value: ir.Value | None) -> bool:
    tensor = constant_tensor(value)
    # what a fold computed is not zero, and evaluating it here would cost what the fold did
    return tensor is not None and not isinstance(tensor, ExactTensor) and not tensor.numpy().any()


def _without_zeros(node: ir.Node) -> bool:
    """Let what reads a sum with zeros read its other operand, where that is as large; tell whether it does."""
    result, graph = node.outputs[0], node.graph
    for value, zeros in (node.inputs, node.inputs[::-1]):
        if graph is None or value is None or not has(value.producer(), Trait.MULTIPLIES) or not _is_zeros(zeros):
            continue
        producer = value.producer()
        known = value.shape is not None and value.shape.is_static() and value.shape == result.shape
        outside = value.is_graph_output() and result.is_graph_output()
        if not known or outside or producer is None or producer.graph is not graph:
            continue  # one name for two outputs, or one that another graph computes
        take_place(value, result, named=False)
        take_out([node])
        return True
    return False
