"""Parts of a graph: some of its operators as a model of their own, and a copy that shows values inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import constant_tensor
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.walk import values_read


def array_type(value: ir.Value) -> ir.DataType | None:
    """Return the type of the numbers of a value that a run can give away as an array; None for a sequence of them."""
    return value.dtype if isinstance(value.type, ir.TensorType) else None


def opened(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a copy of a model with some values as further outputs, behind its own.

    Args:
        names: of values that its operators compute; those that are outputs already stay where they are.
    """
    copy = model.clone()
    values = {str(value.name): value for node in copy.graph for value in node.outputs}
    present = {value.name for value in copy.graph.outputs}
    for name in names:
        if name not in present:
            if values[name].dtype is None:
                values[name].type = ir.TensorType(ir.DataType.FLOAT)
            copy.graph.outputs.append(values[name])
    return copy


def subgraph(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    outputs: Sequence[str],
    values: Mapping[str, Array],
    *,
    fixed: Set[ir.Node] | None = None,
) -> ir.Model:
    """Return a model of some nodes: what they read from outside become inputs, but for what follows from constants.

    An initializer that a caller may override is none of these inputs: nothing is fed in its place.

    Args:
        model: where the nodes are from. nodes: in order. outputs: names of values they compute.
        values: an array per value name, for the dtypes of inputs and outputs.
        fixed: operators that follow from constants, where the caller knows them: many parts of one graph are cut.
    """
    fixed = fixed_nodes(model.graph).by_constants if fixed is None else fixed
    made = {value for node in nodes for value in node.outputs}
    known = dict.fromkeys(value for node in nodes for value in values_read(node))
    outside = [value for value in known if value not in made and value.producer() not in fixed]
    read = [value for value in outside if constant_tensor(value) is None and not value.is_initializer()]
    graph = ir.convenience.extract(model.graph, read, outputs)
    for value in (*graph.inputs, *graph.outputs):
        array = values[str(value.name)]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(graph, ir_version=model.ir_version, functions=functions)
