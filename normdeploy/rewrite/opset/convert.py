"""Nodes at another operator set version, by onnx's version converter; set right where the converter is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, constant64, constant_tensor, round_once, tensor64
from normdeploy.rewrite.opset.own_conversions import describe

_IR_VERSION = 8
_SMALL = 4096
_RULES_OPSET = 18


def converted_by_onnx(nodes: Sequence[ir.Node], old: int, new: int) -> list[ir.Graph]:
    """Return for each node a graph of its own, ``in_0``, ... to ``out_0``, ..., converted; small constants go along.

    The converter is given all of them at once, side by side: a call takes 10 ms, for one node as for a hundred.

    Raises:
        GraphError: onnx cannot convert one, or would change what it computes.
    """
    if len(nodes) < 2:
        return _converted(nodes, old, new)
    try:
        return _converted(nodes, old, new)
    except GraphError:  # names the first of them, which need not be the one: each by itself, so that it is
        return [graph for node in nodes for graph in _converted([node], old, new)]


def _converted(nodes: Sequence[ir.Node], old: int, new: int) -> list[ir.Graph]:
    if not nodes:
        return []
    distinct: list[ir.Value] = []
    initializers: list[ir.Value] = []
    alone = [_alone(node, f"/{at}", distinct, initializers) for at, node in enumerate(nodes)]
    graph = ir.Graph(
        distinct,
        [value for node in alone for value in node.outputs if value.name],
        nodes=alone,
        initializers=initializers,
        opset_imports={"": old},
        name="side_by_side",
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION))
    try:
        converted = version_converter.convert_version(proto, new).graph
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise GraphError(
            f"{describe(nodes[0])} cannot be converted from opset {old} to {new}: {error}. Export the model again with "
            f"opset_version={new} or newer"
        ) from error
    parts = [ir.serde.deserialize_graph(part) for part in _parts(converted, len(nodes))]
    for node, part in zip(nodes, parts, strict=True):
        if node.op_type == "Upsample" or (node.op_type == "Resize" and old == 10):
            _asymmetric(part, node)
        elif node.op_type in ("Clip", "Pad"):
            _of_one_type(part)
    return parts


def _alone(node: ir.Node, end: str, distinct: list[ir.Value], initializers: list[ir.Value]) -> ir.Node:
    """Return a copy of a node between values of its own, whose names end in ``end``; adds these to the lists."""
    inputs: list[ir.Value | None] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
            continue
        tensor = constant_tensor(value)
        copy = ir.Value(name=f"in_{index}{end}", type=value.type, shape=value.shape)
        if tensor is not None and tensor.size <= _SMALL:
            copy.const_value = ir.tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=copy.name)
            copy.type, copy.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            initializers.append(copy)
        else:
            distinct.append(copy)
        inputs.append(copy)
    outputs = [
        ir.Value(name=f"out_{index}{end}" if value.name else "", type=value.type, shape=value.shape)
        for index, value in enumerate(node.outputs)
    ]
    attributes = list(node.attributes.values())
    if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") != "constant":
        attributes = [one for one in attributes if one.name != "value"]  # unused there, and kept
    return ir.Node("", node.op_type, inputs, attributes=attributes, outputs=outputs)


def _parts(whole: onnx.GraphProto, count: int) -> list[onnx.GraphProto]:
    """Cut what was converted side by side into the graph of each node, found from its outputs backwards."""
    parts = [onnx.GraphProto(name="one_node") for _ in range(count)]
    owner = {value.name: int(value.name.rpartition("/")[2]) for value in (*whole.input, *whole.output)}
    nodes: list[list[onnx.NodeProto]] = [[] for _ in parts]
    for node in reversed(whole.node):
        at = next((owner[name] for name in node.output if name in owner), None)
        if at is not None:
            owner.update(dict.fromkeys([name for name in (*node.input, *node.output) if name], at))
            nodes[at].insert(0, node)
    for at, part in enumerate(parts):
        part.node.extend(nodes[at])
    for field in ("input", "output", "value_info", "initializer"):
        for item in getattr(whole, field):
            if item.name in owner:
                getattr(parts[owner[item.name]], field).append(item)
    for at, part in enumerate(parts):
        for item in (*part.input, *part.output, *part.value_info, *part.initializer):
            item.name = item.name.removesuffix(f"/{at}")
        for node in part.node:
            for names in (node.input, node.output):
                names[:] = [name.removesuffix(f"/{at}") for name in names]
    return parts


def _of_one_type(converted: ir.Graph) -> None:
    """Give numbers that were attributes, of which the converter makes float32, the type of what stands beside them."""
    for node in converted:
        kind = None if not node.inputs or node.inputs[0] is None else node.inputs[0].dtype
        if kind not in FLOATS or kind == ir.DataType.FLOAT:
            continue
        for value in node.inputs[1:]:
            maker, tensor = None if value is None else value.producer(), constant_tensor(value)
            if maker is not None and tensor is not None and tensor.dtype == ir.DataType.FLOAT:
                name = tensor.name or ""
                typed = ir.tensor(round_once(tensor64(tensor), kind), dtype=kind, name=name)
                maker.attributes["value"] = ir.AttrTensor("value", typed)


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
