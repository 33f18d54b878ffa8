"""A Pad of zeros in front of a MaxPool names its axes, so that no runtime takes it for the pool's own padding.

A MaxPool pads with minus infinity, a Pad with its value. onnxruntime's Pad fusion (every level but "disable", seen
up to 1.31) moves a Pad of zeros into the MaxPool behind it all the same, and windows over the border of a negative
image come out wrong. It leaves a Pad with the input ``axes`` (opset 18) alone, which here lists all axes: the same
function, for nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.edit import edit_each, put_constant
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import is_standard

_POOLS = frozenset({"MaxPool"})
_AXES = 3
_SINCE = 18


class GuardPads(ir.passes.InPlacePass):
    """Write the axes of each constant Pad that a MaxPool reads."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Guard every graph; below opset 18 a Pad has no such input and stays."""
        if (model.opset_imports.get("") or 0) < _SINCE:
            return ir.passes.PassResult(model, modified=False)
        return edit_each(model, _guard)


def _guard(graph: ir.Graph, node: ir.Node) -> bool:
    if not is_standard(node, "Pad") or not _pads_zeros(node):
        return False
    x = node.inputs[0]
    if x is None or x.shape is None or (len(node.inputs) > _AXES and node.inputs[_AXES] is not None):
        return False
    if not any(usage.node.op_type in _POOLS for usage in node.outputs[0].uses()):
        return False
    axes = put_constant(graph, np.arange(x.shape.rank()), f"{node.name or 'pad'}.axes")
    node.resize_inputs(_AXES + 1)
    node.replace_input_with(_AXES, axes)
    return True


def _pads_zeros(node: ir.Node) -> bool:
    mode = node.attributes.get_string("mode", "constant")
    value = optional(node, 2)
    if mode != "constant":
        return False
    if value is None:
        return True
    constant = constant64(value)
    return constant is not None and not constant.any()
