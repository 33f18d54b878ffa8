"""Chains of operators that only move elements, run on distinct numbers: what they put around the value they move.

No operator is understood. Whatever a chain of ScatterND, slices, transposes and computed indices does to where elements
stand is seen in its result. Where a spatial size is dynamic, it is run for several, two of them larger than any number
among the chain's constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Floats
from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, constant64, constant_tensor, evaluate_region
from normdeploy.graph.dynamic_dims import names_of, size_at
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.replacement import in_order
from normdeploy.rewrite.branches.window import Place

WRITES = frozenset({"ScatterND", "ScatterElements", "Where"})
"""Operators that write some elements in place of others."""

_WIDENS = WRITES | {"Concat", "Pad"}
ENDS = _WIDENS | {"Transpose"}
"""Where a chain may end."""

_LARGEST = 512
"""Nodes of one chain."""

_GROWTH = 4
"""How much larger than any number in a chain a size is tried, of which a stride may leave a part."""


@dataclass(frozen=True)
class Border:
    """What stands around a value: widths per spatial axis, and one number per channel."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    value: Floats


def chain_to(last: ir.Node) -> tuple[list[ir.Node], ir.Value] | None:
    """Return the operators that move one computed value among constants to the result of ``last``, and that value."""
    nodes: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    pending = [last]
    while pending:
        node = pending.pop()
        if node in nodes:
            continue
        nodes[node] = None
        for value in node.inputs:
            if value is None or constant_tensor(value) is not None:
                continue
            producer = value.producer()
            moved = value.dtype in FLOATS
            inside = producer is not None and producer.graph is last.graph and is_standard(producer)
            if producer is not None and inside and (not moved or _moves(producer)):
                pending.append(producer)
            elif node.op_type == "Shape":
                continue  # asked for its size only
            elif moved:
                sources[value] = None
            else:
                return None
        if len(nodes) > _LARGEST or len(sources) > 1:
            return None
    if len(sources) != 1 or not any(node.op_type in _WIDENS for node in nodes):
        return None
    return in_order(list(nodes)), next(iter(sources))


def _moves(node: ir.Node) -> bool:
    return node.op_type in _WIDENS or has(node, Trait.MOVES)


def border_of(nodes: Sequence[ir.Node], source: ir.Value, result: ir.Value) -> Border | None:
    """Run a chain on distinct numbers; return what it puts around ``source``; None where it does something else."""
    found: Border | None = None
    made = {output for node in nodes for output in node.outputs}
    asked = {value for node in nodes if node.op_type == "Shape" for value in node.inputs if value is not None}
    outside = {value for value in asked - made if constant_tensor(value) is None}
    for sizes in _bindings(nodes, source):
        dims = _sized(source, sizes)
        shapes = {value: _sized(value, sizes) for value in outside}
        if dims is None or any(shape is None for shape in shapes.values()):
            return None
        if 0 in dims:
            continue
        feeds = {value: torch.zeros(shape or ()) for value, shape in shapes.items()}
        rng = np.random.default_rng(0)
        borders = []
        for _ in range(2):
            drawn = rng.standard_normal(dims)
            feeds[source] = torch.from_numpy(drawn)
            try:
                (moved,) = evaluate_region(nodes, feeds, [result])
            except GraphError:
                return None
            borders.append(_around(drawn, moved.numpy()))
        first, second = borders
        if first is None or second is None or not _equal(first, second) or (found and not _equal(first, found)):
            return None
        found = first
    return found


def _around(inner: Floats, outer: Floats) -> Border | None:
    """Return the border of ``inner`` in ``outer``, both [N, C, spatial...]."""
    corner = np.argwhere(outer == inner.reshape(-1)[0])
    if outer.ndim != inner.ndim or len(corner) != 1 or outer.shape[:2] != inner.shape[:2] or corner[0, :2].any():
        return None
    begin = tuple(int(at) for at in corner[0, 2:])
    end = tuple(m - n - b for m, n, b in zip(outer.shape[2:], inner.shape[2:], begin, strict=True))
    middle: Place = (..., *(slice(b, b + n) for b, n in zip(begin, inner.shape[2:], strict=True)))
    if min(end) < 0 or not (any(begin) or any(end)) or not np.array_equal(outer[middle], inner):
        return None
    frame = np.ones(outer.shape[2:], bool)
    frame[middle] = False
    values = outer[:, :, frame]  # [N, C, cells]
    value = values[0, :, 0]
    return Border(begin, end, value) if bool((values == value[None, :, None]).all()) else None


def _equal(a: Border, b: Border) -> bool:
    return (a.begin, a.end) == (b.begin, b.end) and np.array_equal(a.value, b.value)


def _bindings(nodes: Sequence[ir.Node], source: ir.Value) -> Iterator[dict[str, int]]:
    """Return sizes of the dynamic dimensions to run a chain for; the batch is 1."""
    assert source.shape is not None
    axes = [dim for dim in source.shape.dims[2:] if isinstance(dim, ir.SymbolicDim)]
    names = sorted({name for dim in axes for name in names_of(dim)})
    if not names:
        yield {}
        return
    constants = [constant64(value) for node in nodes for value in node.inputs]
    integers = [array for array in constants if array is not None and array.dtype.kind in "iu" and array.size]
    known = [int(size) for array in integers for size in np.abs(array.astype(np.float64)).reshape(-1)]
    beyond = max((size for size in known if size < 2**31 - 1), default=0) + 1
    for sizes in ((1, 2), (2, 1), (3, 5), (_GROWTH * beyond, 3), (3, _GROWTH * beyond)):
        yield {name: sizes[at % 2] for at, name in enumerate(names)}


def _sized(value: ir.Value, sizes: Mapping[str, int]) -> list[int] | None:
    """Return the dimensions of a value where dynamic ones have ``sizes``, or 1."""
    if value.shape is None:
        return None
    dims: list[int] = []
    for dim in value.shape.dims:
        if isinstance(dim, ir.SymbolicDim):
            if dim.value is None:
                return None
            given = {name: sizes.get(name, 1) for name in names_of(dim)}
            if not given:  # "?"
                return None
            found = size_at(dim, given)
            if found is None:
                return None
            dims.append(max(found, 0))
        else:
            dims.append(dim)
    return dims
