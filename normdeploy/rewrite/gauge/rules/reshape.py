"""Reshape and its kin, which act on all axes, and Expand.

They keep the row-major order, so dimensions fall into consecutive groups of certainly equal products
(:mod:`normdeploy.rewrite.affine.axes`); the identifiers of an operand's cells are reshaped within each group, whatever
the sizes in the other ones turn out to be at run time.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.operator_inputs import required
from normdeploy.rewrite.affine.axes import groups
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Gauge
from normdeploy.rewrite.gauge.rules.merged_axis import written_out
from normdeploy.rewrite.gauge.rules.moves import Acts, settled
from normdeploy.rewrite.gauge.rules.scatter import cells_of
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Reshape, Flatten, Squeeze, Unsqueeze."""
    result = node.outputs[0]
    source, target = known_dims(required(node, 0)), known_dims(result)
    gauge = ties.operand(node, 0, [2] * len(source), repeats=True)
    full, shape, lost = list[int](), list[int](), list[int]()
    for inner, outer in groups(source, target):
        cells = gauge.cells[inner.start : inner.stop]
        found = written_out([source[at] for at in inner], [target[at] for at in outer], cells)
        for axis, size in zip(outer, found[1] if found else (), strict=False):
            if size > 1 and not isinstance(target[axis], int) and ties.repeated.setdefault(result, axis) != axis:
                found = None
        if found is None:
            lost += [axis for axis in inner if gauge.cells[axis] > 1]
            found = [1] * len(inner), [1] * len(outer)
        full += found[0]
        shape += found[1]
    if lost:
        gauge = ties.along(gauge, lost, Tie(node, "merges or repeats the axis along which it varies"))
    if math.prod(full) > 4 * MOST_CELLS:
        gauge = ties.along(gauge, range(gauge.rank), Tie(node, "has more elements than are followed"))
        return gauge.each(lambda array: array.reshape((1,) * len(target)))
    identifiers = np.arange(math.prod(gauge.cells), dtype=np.int64).reshape(gauge.cells)
    for axis, (size, count) in enumerate(zip(full, gauge.cells, strict=True)):
        if 1 < count < size:
            identifiers = identifiers.take(np.arange(size) % count, axis)
    moved = np.broadcast_to(identifiers, full).reshape(shape)
    return settled(node, ties, result, gauge.each(lambda array: array.reshape(-1)), moved, Acts())


def expand(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Expand: what is repeated is one cell; zeros are of any scale, and grow where they get a shift."""
    target, filled = known_dims(node.outputs[0]), constant64(required(node, 0))
    zeros = None if filled is None or filled.size != 1 or filled.any() else cells_of(target)
    gauge = ties.operand(node, 0, zeros or [2] * len(target), grows=zeros is not None)
    if gauge.rank > len(target):
        raise Unfollowed
    return gauge.wider(len(target))
