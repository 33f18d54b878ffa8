"""Inputs for a graph of which nothing but its declaration is known."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.onnx_files import declared
from normdeploy.ort.made_inputs import make_inputs
from normdeploy.ort.specs import TensorSpec

_BATCH = 3
_SPATIAL = 32
_LENGTH = 8


def example_feeds(graph: ir.Graph) -> dict[str, Array]:
    """Return one random value per graph input: floats N(0, 1), ids within the tables they index, flags true.

    Args:
        graph: its dynamic dimensions become small sizes, the same name the same size.
    """
    inputs = [value for value in graph.inputs if value.name is not None and value.name not in graph.initializers]
    sizes: dict[str, int] = {}

    def size_of(spec: TensorSpec, axis: int) -> int:
        image = len(spec.shape) >= 4 and axis >= 2
        return sizes.setdefault(str(spec.shape[axis]), _BATCH if axis == 0 else _SPATIAL if image else _LENGTH)

    flags = {str(value.name): 1.0 for value in inputs if value.dtype == ir.DataType.BOOL}
    ids = {str(value.name): _vocabulary(value) for value in inputs}
    return make_inputs([declared(value) for value in inputs], size_of, seed=0, ones=flags, ids=ids)


def _vocabulary(value: ir.Value) -> int:
    """Return how many ids an integer input may take: the rows of the tables that it indexes."""
    rows = [
        int(table.shape[0])
        for use in value.uses()
        if use.node.op_type == "Gather" and use.idx == 1
        for table in use.node.inputs[:1]
        if table is not None and table.shape is not None and isinstance(table.shape[0], int)
    ]
    return min(rows, default=2)
