"""Shapes inside the bodies of If, Loop and Scan.

onnx's shape inference does not look at constants outside of a body, so that a ReduceMean or Reshape in it whose axes or
target stand in the outer graph has a result of unknown shape. Here each body gets its own copy of the small integer
constants it captures, and inference runs once more.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import put_constant, share_names
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.infer import infer_missing_types

_SMALL = 64
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})


def infer_bodies(model: ir.Model) -> bool:
    """Give the values in bodies their shapes as far as constants tell; return whether the model changed.

    Args:
        model: constants are initializers (``weights.EvaluateConstants``).
    """
    bodies = [graph for graph in graphs_of(model) if graph is not model.graph]
    unknown = [graph for graph in bodies if any(value.shape is None for node in graph for value in node.outputs)]
    if not unknown:
        return False
    share_names(model)
    copied = False
    for graph in unknown:
        copied |= _copy_constants(graph)
    return copied and infer_missing_types(model)


def _copy_constants(graph: ir.Graph) -> bool:
    copies: dict[ir.Value, ir.Value] = {}
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is None or value.graph is graph or not _is_small(value):
                continue
            if value not in copies:
                copies[value] = _copy(graph, value)
            node.replace_input_with(index, copies[value])
    return bool(copies)


def _is_small(value: ir.Value) -> bool:
    if not value.is_initializer() or value.is_graph_input() or value.dtype not in _INTEGERS:
        return False
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size <= _SMALL


def _copy(graph: ir.Graph, value: ir.Value) -> ir.Value:
    original = constant_tensor(value)
    assert original is not None  # asked by _is_small
    return put_constant(graph, original.numpy(), f"{value.name}_inner", original.dtype)
