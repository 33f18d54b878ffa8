"""Inputs for a graph of which nothing but its declaration is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.inputs import require_memory

_BATCH = 3
_SPATIAL = 32
_LENGTH = 8


def example_feeds(graph: ir.Graph, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Return one random value per graph input: floats N(0, 1), ids within the tables they index, flags true.

    Args:
        graph: its dynamic dimensions become small sizes, the same name the same size.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    feeds: dict[str, npt.NDArray[Any]] = {}
    for value in graph.inputs:
        if value.name is None or value.name in graph.initializers:
            continue
        dims = list(value.shape) if value.shape is not None else []
        shape = [_size(dim, axis, len(dims), sizes) for axis, dim in enumerate(dims)]
        require_memory(f"input {value.name!r}", shape)
        dtype = (value.dtype or ir.DataType.FLOAT).numpy()
        if dtype.kind in "iu":
            feeds[value.name] = rng.integers(0, _vocabulary(value), shape).astype(dtype)
        elif dtype.kind == "b":
            feeds[value.name] = np.ones(shape, dtype)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def _size(dim: Any, axis: int, rank: int, sizes: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    default = _BATCH if axis == 0 else _SPATIAL if rank >= 4 and axis >= 2 else _LENGTH
    return sizes.setdefault(str(dim.value), default)


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
