"""Types and shapes of values that their maker left untyped, by onnx's shape inference."""

from __future__ import annotations

import logging

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from normdeploy.graph.edit import is_read
from normdeploy.graph.walk import nodes_of

_KNOWN_BYTES = 1000
"""Constants up to this size are shown to the inference, which reads the targets of Reshape and the like."""

_logger = logging.getLogger(__name__)


def infer_missing_types(model: ir.Model) -> bool:
    """Run shape inference where any value that is read lacks a type or a shape; return whether it ran.

    A flaw in the graph does not stop it: a value without a type only means that no rule applies to it.
    """
    nodes = nodes_of(model)
    if not any(_untyped(output) for node in nodes for output in node.outputs):
        return False
    if any(node.graph is not model.graph for node in nodes):
        common_passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    else:
        _infer_flat(model)
    return True


def _untyped(value: ir.Value) -> bool:
    if value.shape is not None and value.dtype is not None:
        return False
    return is_read(value)


def _infer_flat(model: ir.Model) -> None:
    """Infer in a model without control flow: nodes and types go to onnx, and only the types come back."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = "shapes"
    for value in dict.fromkeys((*model.graph.inputs, *model.graph.initializers.values())):
        tensor = value.const_value if value.is_initializer() else None
        if tensor is not None and tensor.nbytes <= _KNOWN_BYTES and not value.is_graph_input():
            ir.serde.serialize_tensor_into(graph.initializer.add(), tensor)
            graph.initializer[-1].name = value.name
        elif tensor is not None:
            graph.input.append(onnx.helper.make_tensor_value_info(str(value.name), tensor.dtype, tensor.shape.numpy()))
        else:
            ir.serde.serialize_value_into(graph.input.add(), value)
    values: dict[str, ir.Value] = {}
    for node in model.graph:
        ir.serde.serialize_node_into(graph.node.add(), node)
        for output in node.outputs:
            if not output.name:
                continue
            values[output.name] = output
            if output.type is not None:
                shown = graph.output if output.is_graph_output() else graph.value_info
                ir.serde.serialize_value_into(shown.add(), output)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:  # the inference raises many types for a graph that is not valid
        _logger.warning("onnx could not infer shapes (%s); they stay unknown", error)
        return
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if info.name in values:
            _complete(values[info.name], info.type)


def _complete(value: ir.Value, proto: onnx.TypeProto) -> None:
    """Take over what a value lacks: its type, its rank, and dimensions that are static after all."""
    if value.type is None:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
    found = ir.serde.deserialize_type_proto_for_shape(proto)
    if found is None:
        return
    if value.shape is None:
        value.shape = found
    elif not value.shape.is_static() and len(value.shape) == len(found):
        merged = [new if isinstance(new, int) else old for old, new in zip(value.shape, found, strict=True)]
        if merged != list(value.shape):
            value.shape = ir.Shape(merged)
