"""Shapes inside the bodies of If, Loop and Scan.

onnx's shape inference does not look at constants outside of a body, so that a ReduceMean or Reshape in it whose axes or
target stand in the outer graph has a result of unknown shape. Here each body gets its own copy of the small integer
constants it captures, and inference runs once more.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
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
    taken = {str(value.name) for graph in graphs_of(model) for node in graph for value in node.outputs}
    taken |= {name for graph in graphs_of(model) for name in graph.initializers}
    taken |= {str(value.name) for graph in graphs_of(model) for value in graph.inputs}
    copied = False
    for graph in unknown:
        copied |= _copy_constants(graph, taken)
    return copied and infer_missing_types(model)


def _copy_constants(graph: ir.Graph, taken: set[str]) -> bool:
    copies: dict[ir.Value, ir.Value] = {}
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is None or value.graph is graph or not _is_small(value):
                continue
            if value not in copies:
                copies[value] = _copy(graph, value, taken)
            node.replace_input_with(index, copies[value])
    return bool(copies)


def _is_small(value: ir.Value) -> bool:
    if not value.is_initializer() or value.is_graph_input() or value.dtype not in _INTEGERS:
        return False
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size <= _SMALL


def _copy(graph: ir.Graph, value: ir.Value, taken: set[str]) -> ir.Value:
    name, count = f"{value.name}_inner", 1
    while name in taken:
        name, count = f"{value.name}_inner{count}", count + 1
    taken.add(name)
    original = constant_tensor(value)
    assert original is not None  # asked by _is_small
    tensor = ir.tensor(np.array(original.numpy()), dtype=original.dtype, name=name)
    made = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(made)
    return made
