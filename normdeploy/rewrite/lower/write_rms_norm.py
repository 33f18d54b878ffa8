"""Write RMSNormalization for operator sets that do not have it.

RMSNormalization is part of operator set 23. Where the caller, or the runtime in use, wants an older one, it is written
as

    Pow(x, 2), ReduceMean, Add epsilon, Sqrt, Div(x, .), Mul by the scale

onnxruntime takes exactly these six for its own fused operator when it loads the file, and is then as fast as with
RMSNormalization; with a product in place of Pow, a reciprocal in place of Div, or without the scale it is not
(docs/norm-operators.md). So the scale is written even where it is one. Half precision is computed in float32, as the
operator does.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.graph import WHERE
from normdeploy.graph.edit import edit_each, take_place
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.recognise.builder import Builder, free_stem
from normdeploy.rewrite.rewrite_context import RMS_OPSET

_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


class LowerNorms(ir.passes.InPlacePass):
    """Replace every RMSNormalization of a graph below operator set 23."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Lower the main graph and its bodies."""
        if model.opset_imports.get("", RMS_OPSET) >= RMS_OPSET:
            return ir.passes.PassResult(model, modified=False)
        return edit_each(model, partial(_spell, model))


def _spell(model: ir.Model, graph: ir.Graph, node: ir.Node) -> bool:
    if not is_standard(node, "RMSNormalization"):
        return False
    x, scale = node.inputs[0], node.inputs[1]
    output = node.outputs[0]
    dtype = output.dtype or ir.DataType.FLOAT
    assert x is not None
    assert scale is not None
    axis = node.attributes.get_int("axis", -1)
    rank = len(output.shape or x.shape or ())
    axes = list(range(axis - rank if axis >= 0 else axis, 0))
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    builder = Builder(free_stem(model, str(output.name)), dtype if dtype in _WIDE else ir.DataType.FLOAT)
    data = x if dtype in _WIDE else builder.op("Cast", [x], to=int(ir.DataType.FLOAT))
    square = builder.op("Pow", [data, builder.constant("two", np.array(2.0))])
    mean = builder.op("ReduceMean", [square, builder.integers("axes", axes)], keepdims=1)
    root = builder.op("Sqrt", [builder.statistic("Add", [mean, builder.constant("epsilon", np.array(epsilon))])])
    normal = builder.op("Div", [data, root])
    if dtype not in _WIDE:
        normal = builder.op("Cast", [normal], to=int(dtype))
        normal.type = output.type
    result = builder.op("Mul", [normal, scale])
    for constant in builder.constants:
        graph.register_initializer(constant)
    graph.insert_before(node, builder.nodes)
    for made in builder.nodes:
        made.metadata_props.update(node.metadata_props)
        made.metadata_props.setdefault(WHERE, node.name or str(output.name))
    result.type, result.shape = output.type, output.shape
    take_place(result, output)
    graph.remove(node, safe=True)
    return True
