"""Inputs and outputs as a file declares them, read without making a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normdeploy.errors import GraphError
from normdeploy.onnxfile import read_outline
from normdeploy.onnxfile.schema import ELEMENTS
from normdeploy.ort.specs import TensorSpec


def file_specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs as the file declares them, without making a session.

    Raises:
        GraphError: a value that is no tensor of a known type and rank.
    """
    graph = read_outline(path).proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    return (
        tuple(_declared(value) for value in graph.input if value.name not in weights),
        tuple(_declared(value) for value in graph.output),
    )


def _declared(value: Any) -> TensorSpec:
    tensor = value.type.tensor_type
    if tensor.elem_type not in ELEMENTS or not tensor.HasField("shape"):
        raise GraphError(f"{value.name!r} has no declared type and rank; expected both: export it again")
    sizes = (
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param if dim.HasField("dim_param") else None
        for dim in tensor.shape.dim
    )
    return TensorSpec(value.name, ELEMENTS[tensor.elem_type][0], tuple(sizes))
