"""A bias of zeros leaves its convolution: y + 0 = y, and the runtime adds one array less.

Convolutions (Conv, ConvTranspose) and Gemm whose constant addend holds zeros only lose that input. Gemm's C may be
wider than the product only by broadcasting, which zeros do not need.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import ExactTensor, constant_tensor
from normdeploy.graph.edit import drop_if_unread
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.walk import nodes_of


class DropZeroBiases(ir.passes.InPlacePass):
    """Take constant addends of zeros out of linear operators."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Look at every linear operator of every graph."""
        modified = False
        for node in nodes_of(model):
            linear = linear_of(node)
            if linear is None or linear.form is Form.RECURRENT or linear.bias != len(node.inputs) - 1:
                continue  # an input behind the bias keeps its place
            bias = node.inputs[linear.bias]
            tensor = constant_tensor(bias)
            # what a fold computed is not zero, and evaluating it here would cost what the fold did
            if bias is None or tensor is None or isinstance(tensor, ExactTensor) or tensor.numpy().any():
                continue
            node.resize_inputs(linear.bias)
            drop_if_unread(bias)
            modified = True
        return ir.passes.PassResult(model, modified)
