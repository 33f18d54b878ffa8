"""What is written over part of an axis is joined with what is left of it, where the places are known.

``y[:, :2] = u`` is traced to Transposes, indices and a ScatterND, ``y[:, 1] = u`` to a ScatterElements whose indices
are repeated to the shape of u: operators that copy element by element, and behind which a scale of y and one of u have
to be the same. With rows p <= k < q of an axis written::

    scatter(x, [p, ..., q - 1], u) = Concat(x[:p], u, x[q:])
    scatter(x, any rows, u) = Gather(Concat(x, u), rows of either)
    scatter(x, all rows, u) = u

Done where

1. nothing is added or multiplied: each place gets what is written there last, and none is written twice;
2. the rows are constants and the axis has a known size; or they are all rows in order, whatever the size;
3. a ScatterElements names the same rows everywhere, and writes along the whole of every other axis.

Transposes that bring the axis to the front, and back, leave with it. A row of a value that was joined so before is read
from what was joined, so that a value of zeros of which every row is written is read no more. What is written into a
value that is one number everywhere is padded with it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Ints
from normdeploy.graph.edit import free_name, only_reader, take_out_unread, take_place
from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.identities import hand_on
from normdeploy.rewrite.joined_parts import Cuts, Joined, Writing, inverse, pad_instead
from normdeploy.rewrite.sizes import size_of
from normdeploy.rewrite.weights.shape_computations import KnownShapes, integer_constant

_WRITERS = ("ScatterND", "ScatterElements")


class JoinWrittenParts(ir.passes.InPlacePass):
    """Join what is written over known rows of an axis with what is left of them."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified, shapes = False, KnownShapes()
        for graph in graphs_of(model):
            cuts: Cuts = {}
            joined: list[ir.Value] = []
            for node in list(graph):
                if is_standard(node):
                    shapes.visit(node)
                if node.graph is graph and is_standard(node, *_WRITERS):
                    modified |= _all_written(node, shapes) or _join(graph, node, cuts, joined)
            for value in joined:
                pad_instead(graph, value)
        return ir.passes.PassResult(model, modified)


def _replaces(node: ir.Node) -> bool:
    return node.attributes.get_string("reduction", "none") == "none"


def _all_written(node: ir.Node, shapes: KnownShapes) -> bool:
    """Let what reads a value of which all rows are written, one after the other, read what is written."""
    data, places, updates = node.inputs
    if node.op_type != "ScatterND" or data is None or places is None or not _replaces(node) or data.shape is None:
        return False
    if places.shape is None or len(places.shape) != 2 or places.shape[1] != 1:
        return False
    named, size = integer_constant(places), size_of(data, 0)
    if named is None:
        column = places.producer()
        counted = None if column is None or not is_standard(column, "Unsqueeze", "Reshape") else column.inputs[0]
        rows = None if counted is None else counted.producer()
        if rows is None or not is_standard(rows, "Range"):
            return False
        ends = [None if value is None else shapes.elements(value) for value in rows.inputs]
        every = ends == [(0,), (size,), (1,)]
    else:
        every = isinstance(size, int) and np.array_equal(named[:, 0], np.arange(size))
    if not every or updates is None:
        return False
    read = list(node.inputs)
    if updates.shape is None:
        updates.shape = ir.Shape(data.shape.dims)  # as many rows, each of them one of the value's
    hand_on(node, updates)
    take_out_unread(read)
    return True


def _writing(node: ir.Node) -> Writing | None:
    """Return what an operator writes; None where the rows are not known, or not all of one axis are alike."""
    data, places, updates = node.inputs
    shapes = [None if value is None else value.shape for value in (data, places, updates)]
    if data is None or updates is None or any(shape is None for shape in shapes) or not _replaces(node):
        return None
    rank = len(shapes[0])  # type: ignore[arg-type] # asked above
    axis = 0 if node.op_type == "ScatterND" else axis_of(node.attributes.get_int("axis", 0), rank)
    rows = _rows(node, axis, rank)
    size = data.shape[axis] if data.shape is not None else None
    if rows is None or not isinstance(size, int) or not 0 < rows.size < size:
        return None
    rows = np.where(rows < 0, rows + size, rows)
    if rows.min() < 0 or rows.max() >= size or len(np.unique(rows)) < len(rows):
        return None
    turn = _turned(node) if node.op_type == "ScatterND" else None
    if node.op_type == "ScatterND" and turn is None:
        return None  # rows of the first axis are copied as wholes: one operator for three
    return Writing(node, axis if turn is None else turn[0], rows, turn)


def _rows(node: ir.Node, axis: int, rank: int) -> Ints | None:
    """Return the rows that are named along an axis, where they are constants, and the same at every other place."""
    data, places, updates = node.inputs
    assert places is not None
    if node.op_type == "ScatterND":
        array = integer_constant(places)
        return array[:, 0] if array is not None and array.ndim == 2 and array.shape[1] == 1 else None
    assert data is not None
    assert updates is not None
    if any(size_of(data, at) != size_of(updates, at) for at in range(rank) if at != axis):
        return None
    source = places.producer()
    repeated = source.inputs[0] if source is not None and is_standard(source, "Expand") else places
    array = None if repeated is None else integer_constant(repeated)
    if array is None or updates.shape is None:
        return None
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    first = array[tuple(slice(None) if at == axis else slice(0, 1) for at in range(rank))]
    if not (array == first).all():
        return None
    count = updates.shape[axis]
    return np.broadcast_to(first.reshape(-1), (count,)) if isinstance(count, int) and first.size in (1, count) else None


def _turned(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of which a ScatterND reads a Transpose, or by which what reads it undoes one."""
    data, _, updates = node.inputs
    for value in (data, updates):
        source = None if value is None else value.producer()
        if source is not None and is_standard(source, "Transpose") and "perm" in source.attributes:
            return tuple(source.attributes.get_ints("perm"))
    reader = only_reader(node.outputs[0])
    if reader is not None and is_standard(reader, "Transpose") and "perm" in reader.attributes:
        return inverse(reader.attributes.get_ints("perm"))
    return None


def _join(graph: ir.Graph, node: ir.Node, cuts: Cuts, every: list[ir.Value]) -> bool:
    writing = _writing(node)
    if writing is None:
        return False
    made = Joined(graph, writing, cuts)
    read, result = list(node.inputs), node.outputs[0]
    joined = made.result()
    every.append(joined)
    back = writing.back
    for reader in dict.fromkeys(usage.node for usage in result.uses()) if back is not None else ():
        if is_standard(reader, "Transpose") and tuple(reader.attributes.get_ints("perm", ())) == back:
            if joined.name is None:
                take_place(joined, reader.outputs[0])
                graph.remove(reader, safe=True)
            else:
                hand_on(reader, joined)
    if back is None:
        take_place(joined, result)
    elif result.uses() or result.is_graph_output():
        joined.name = joined.name or free_name(graph, f"{result.name}_joined")
        take_place(made.transposed(joined, writing.turn), result)
    take_out_unread([result, *read])
    return True
