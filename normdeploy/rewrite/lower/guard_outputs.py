"""A grouped convolution with a bias that is an output of the graph and part of a sum gets a copy for the output.

onnxruntime (seen at 1.31) fuses the sum into one of the convolutions that it adds, and then looks in vain for the
output that the other one made: "Failed to find node output or a constant initializer". The file does not load. With an
Identity between the convolution and the output nothing is lost: the same function, and one copy of a tensor.
docs/upstream/onnxruntime.md has the reproduction.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.edit import edit_each, free_name
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.traits import Trait, has


class GuardOutputs(ir.passes.InPlacePass):
    """Copy what such convolutions give to the graph's outputs."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Guard every graph."""
        return edit_each(model, _guard)


def _is_at_risk(node: ir.Node) -> bool:
    linear = linear_of(node)
    if linear is None or linear.form is not Form.CONVOLUTION or linear.groups == 1:
        return False
    result = node.outputs[0]
    summed = any(has(usage.node, Trait.ADDS) for usage in result.uses())
    return linear.value(linear.bias) is not None and result.is_graph_output() and summed


def _guard(graph: ir.Graph, node: ir.Node) -> bool:
    if not _is_at_risk(node):
        return False
    result = node.outputs[0]
    name = str(result.name)
    copy = ir.Value(shape=result.shape, type=result.type)
    graph.insert_after(node, ir.Node("", "Identity", [result], outputs=[copy], name=free_name(graph, f"{name}.copy")))
    for index, value in enumerate(graph.outputs):
        if value is result:
            graph.outputs[index] = copy
    result.name = free_name(graph, f"{name}.inner")
    copy.name = name
    return True
