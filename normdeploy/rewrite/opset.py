"""Operator set versions: graphs of an old version are raised, node by node, to one whose forms the rules know.

Versions below 18 spell the same operation differently (axes as attributes of Squeeze and ReduceMean, ratio as an
attribute of Dropout, Upsample for Resize). A graph at 18 or above keeps its version; an older one is raised to 18, no
further. Where a rule emits an operator that is younger than the graph's version, :func:`raise_opset` raises the graph
that far.

onnx's version converter knows how each operator changed, but given a whole model it loses the domain of operators
outside the standard, node metadata and some names. So it is given one node at a time, and only nodes whose form changed
between the two versions: everything else of the graph stays the very same object. Where the converter is wrong (it
reads the asymmetric coordinates of an old Resize as half-pixel ones), the result is set right here.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnx import defs, version_converter

from normdeploy.errors import GraphError
from normdeploy.graph import constant64, constant_tensor
from normdeploy.rewrite.infer import infer_missing_types

OLDEST = 7
"""Versions below this one broadcast by attributes; no tool in use writes them."""

RULES_OPSET = 18
"""The lowest version whose forms the rewriting rules read."""

_RULES_IR_VERSION = 8
_SMALL = 4096


class RaiseOpset(ir.passes.InPlacePass):
    """Raise a graph below opset 18 to it; drop initializers from the inputs where the format demanded them there.

    IR versions below 4 list every initializer among the graph inputs too; there it says nothing about the caller's
    wish to override it. From version 4 on such an input is a choice, and is kept.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Raise the model in place.

        Raises:
            GraphError: the version is below 7 or unknown to onnx, or an operator cannot be converted.
        """
        modified = False
        if model.ir_version < 4:
            modified = common_passes.RemoveInitializersFromInputsPass()(model).modified
        if model.ir_version < _RULES_IR_VERSION:
            model.ir_version = _RULES_IR_VERSION
            modified = True
        version = model.opset_imports.get("")
        if version is None:
            return ir.passes.PassResult(model, modified)
        if version > defs.onnx_opset_version():
            raise GraphError(
                f"the graph uses opset {version}; expected at most {defs.onnx_opset_version()}, the newest that the "
                "installed onnx knows: upgrade onnx, or export with a lower opset_version"
            )
        if version < OLDEST:
            raise GraphError(
                f"the graph uses opset {version}; expected {OLDEST} or newer: convert it with onnx.version_converter"
            )
        for graph in model.graphs():
            graph.opset_imports.setdefault("", version)  # body graphs are read without it
        modified |= infer_missing_types(model)
        if version < RULES_OPSET:
            raise_opset(model, RULES_OPSET)
            modified = True
        return ir.passes.PassResult(model, modified)


def raise_opset(model: ir.Model, version: int) -> None:
    """Raise a model to an operator set version in place; a model at that version or above stays as it is.

    Args:
        model: its functions must be inlined.
        version: the version wanted for the standard domain.

    Raises:
        GraphError: an operator cannot be converted; the message names the node.
    """
    current = model.opset_imports.get("", version)
    if current >= version:
        return
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.domain in ("", "ai.onnx") and changed_form(node.op_type, current, version):
            _convert(node, current, version)
    for graph in model.graphs():
        graph.opset_imports[""] = version
    model.opset_imports[""] = version


def changed_form(op_type: str, old: int, new: int) -> bool:
    """Tell whether an operator is written differently in two versions (attributes, defaults, operands, or its name).

    Raises:
        GraphError: the operator does not exist in the older version.
    """
    if not defs.has(op_type, old, ""):
        raise GraphError(f"operator {op_type} is not part of opset {old}, which the graph says it uses")
    before = defs.get_schema(op_type, old, "")
    if not defs.has(op_type, new, ""):
        return True
    after = defs.get_schema(op_type, new, "")
    if before.since_version == after.since_version:
        return False
    return after.deprecated or _form(before) != _form(after)


def _form(schema: defs.OpSchema) -> tuple[object, ...]:
    attributes = {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    return attributes, [(item.name, item.option) for item in schema.inputs], [item.option for item in schema.outputs]


def _convert(node: ir.Node, old: int, new: int) -> None:
    """Put what onnx's converter makes of one node in its place, under the node's own names."""
    graph = node.graph
    if graph is None:
        raise GraphError(f"node {node.name!r} belongs to no graph; expected one of the model's")
    if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
        return  # control flow changed in the types it carries, never in its form
    converted = _converted_alone(node, old, new)
    if node.op_type == "Upsample" or (node.op_type == "Resize" and old == 10):
        _asymmetric(converted, node)
    replacements = {f"in_{index}": value for index, value in enumerate(node.inputs)}
    base = next(value.name for value in node.outputs if value.name)
    fresh = (f"{base}_opset{new}_{count}" for count in itertools.count())
    for value in converted.graph.initializers.values():
        if value.name not in replacements:
            replacements[str(value.name)] = _register(graph, value, next(fresh))
    nodes: list[ir.Node] = []
    results: dict[str, ir.Value] = {}
    for part in converted.graph:
        copy = ir.Node(
            part.domain,
            part.op_type,
            [None if value is None or not value.name else replacements[value.name] for value in part.inputs],
            attributes=list(part.attributes.values()),
            num_outputs=len(part.outputs),
            name=node.name if part.op_type == converted.graph[-1].op_type else next(fresh),
            metadata_props=dict(node.metadata_props),
        )
        for theirs, ours in zip(part.outputs, copy.outputs, strict=True):
            ours.name = next(fresh) if theirs.name else ""
            tensor = constant_tensor(theirs)
            if tensor is None:
                ours.type, ours.shape = theirs.type, theirs.shape
            else:
                ours.type, ours.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            replacements[str(theirs.name)] = ours
            results[str(theirs.name)] = ours
        nodes.append(copy)
    made = [results[str(value.name)] for value in converted.graph.outputs]
    used = [value for value in node.outputs if value.name]
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, used, made)


def _asymmetric(converted: ir.Model, node: ir.Node) -> None:
    """Say what Upsample and the Resize of opset 10 did: x_in = x_out / scale; nearest rounds down, shrinking up."""
    resize = next(part for part in converted.graph if part.op_type == "Resize")
    scales = next((constant64(value) for value in reversed(resize.inputs) if value is not None), None)
    if scales is None and "scales" not in node.attributes:
        scales = constant64(node.inputs[1])
    resize.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    mode = resize.attributes["mode"].as_string() if "mode" in resize.attributes else "nearest"
    if mode != "nearest":
        return
    if scales is None:
        raise GraphError(
            f"node {node.name or node.outputs[0].name!r} ({node.op_type}) computes its scales; expected constant ones, "
            f"because its rounding depends on them: export again with opset_version={RULES_OPSET} or newer"
        )
    shrinks = bool((np.asarray(scales) < 1).any())
    if shrinks and bool((np.asarray(scales) > 1).any()):
        raise GraphError(
            f"node {node.name or node.outputs[0].name!r} ({node.op_type}) enlarges one axis and shrinks another; "
            f"expected one or the other: export again with opset_version={RULES_OPSET} or newer"
        )
    resize.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")


def _register(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    ours = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    graph.register_initializer(ours)
    return ours


def _converted_alone(node: ir.Node, old: int, new: int) -> ir.Model:
    """Convert a model of this one node; its constants go along as far as they are small."""
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
    alone = ir.Node("", node.op_type, inputs, attributes=list(node.attributes.values()), outputs=outputs)
    graph = ir.Graph(
        distinct,
        [value for value in outputs if value.name],
        nodes=[alone],
        initializers=initializers,
        opset_imports={"": old},
        name="one_node",
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=_RULES_IR_VERSION))
    try:
        return ir.from_proto(version_converter.convert_version(proto, new))
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise GraphError(
            f"node {node.name or node.outputs[0].name!r} ({node.op_type}, opset {old}) cannot be converted to opset "
            f"{new}: {error}. Export the model again with opset_version={new} or newer"
        ) from error
