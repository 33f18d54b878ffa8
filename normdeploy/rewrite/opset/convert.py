"""One node at another operator set version, by onnx's version converter; set right where the converter is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from normdeploy.errors import GraphError
from normdeploy.graph import constant64, constant_tensor
from normdeploy.rewrite.opset.own_conversions import describe

_IR_VERSION = 8
_SMALL = 4096
_RULES_OPSET = 18


def converted_by_onnx(node: ir.Node, old: int, new: int) -> ir.Graph:
    """Return a graph of this one node, ``in_0``, ... to ``out_0``, ..., converted; small constants go along.

    Raises:
        GraphError: onnx cannot convert it, or would change what it computes.
    """
    inputs: list[ir.Value | None] = []
    distinct: list[ir.Value] = []
    initializers: list[ir.Value] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
            continue
        tensor = constant_tensor(value)
        copy = ir.Value(name=f"in_{index}", type=value.type, shape=value.shape)
        if tensor is not None and tensor.size <= _SMALL:
            copy.const_value = ir.tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=copy.name)
            copy.type, copy.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            initializers.append(copy)
        else:
            distinct.append(copy)
        inputs.append(copy)
    outputs = [
        ir.Value(name=f"out_{index}" if value.name else "", type=value.type, shape=value.shape)
        for index, value in enumerate(node.outputs)
    ]
    attributes = list(node.attributes.values())
    if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") != "constant":
        attributes = [one for one in attributes if one.name != "value"]  # unused there, and kept
    alone = ir.Node("", node.op_type, inputs, attributes=attributes, outputs=outputs)
    graph = ir.Graph(
        distinct,
        [value for value in outputs if value.name],
        nodes=[alone],
        initializers=initializers,
        opset_imports={"": old},
        name="one_node",
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION))
    try:
        converted = ir.from_proto(version_converter.convert_version(proto, new)).graph
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise GraphError(
            f"{describe(node)} cannot be converted from opset {old} to {new}: {error}. Export the model again with "
            f"opset_version={new} or newer"
        ) from error
    if node.op_type == "Upsample" or (node.op_type == "Resize" and old == 10):
        _asymmetric(converted, node)
    return converted


def _asymmetric(converted: ir.Graph, node: ir.Node) -> None:
    """Say what Upsample and the Resize of opset 10 did: x_in = x_out / scale; nearest rounds down, shrinking up."""
    resize = next(part for part in converted if part.op_type == "Resize")
    scales = next((constant64(value) for value in reversed(resize.inputs) if value is not None), None)
    if scales is None and "scales" not in node.attributes:
        scales = constant64(node.inputs[1])
    resize.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    mode = resize.attributes["mode"].as_string() if "mode" in resize.attributes else "nearest"
    if mode != "nearest":
        return
    if scales is None:
        raise GraphError(
            f"{describe(node)} computes its scales; expected constant ones, "
            f"because its rounding depends on them: export again with opset_version={_RULES_OPSET} or newer"
        )
    shrinks = bool((np.asarray(scales) < 1).any())
    if shrinks and bool((np.asarray(scales) > 1).any()):
        raise GraphError(
            f"{describe(node)} enlarges one axis and shrinks another; "
            f"expected one or the other: export again with opset_version={_RULES_OPSET} or newer"
        )
    resize.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")
