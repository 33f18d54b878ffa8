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
from normdeploy.rewrite.gauge.rules.moves import Acts, settled
from normdeploy.rewrite.gauge.rules.scatter import cells_of
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Reshape, Flatten, Squeeze, Unsqueeze."""
    source, target = known_dims(required(node, 0)), known_dims(node.outputs[0])
    gauge = ties.operand(node, 0, [2] * len(source))
    identifiers = np.arange(math.prod(gauge.cells), dtype=np.int64).reshape(gauge.cells)
    full, shape, lost = [], [], []
    for inner, outer in groups(source, target):
        varies = any(gauge.cells[axis] > 1 for axis in inner)
        sizes = [source[axis] for axis in inner], [target[axis] for axis in outer]
        static = [[size for size in side if isinstance(size, int)] for side in sizes]
        same = [len(some) == len(side) for some, side in zip(static, sizes, strict=True)]
        if varies and all(same) and math.prod(static[0]) == math.prod(static[1]):
            full += static[0]
            shape += static[1]
        else:
            if varies:
                lost += list(inner)
            full += [1] * len(inner)
            shape += [1] * len(outer)
    if lost:
        gauge = ties.along(gauge, lost, Tie(node, "merges or repeats the axis along which it varies"))
        identifiers = np.arange(math.prod(gauge.cells), dtype=np.int64).reshape(gauge.cells)
    if math.prod(full) > 4 * MOST_CELLS:
        gauge = ties.along(gauge, range(gauge.rank), Tie(node, "has more elements than are followed"))
        return gauge.each(lambda array: array.reshape((1,) * len(target)))
    moved = np.broadcast_to(identifiers, full).reshape(shape)
    return settled(node, ties, node.outputs[0], gauge.each(lambda array: array.reshape(-1)), moved, Acts())


def expand(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Expand: what is repeated is one cell; zeros are of any scale, and grow where they get a shift."""
    target, filled = known_dims(node.outputs[0]), constant64(required(node, 0))
    zeros = None if filled is None or filled.size != 1 or filled.any() else cells_of(target)
    gauge = ties.operand(node, 0, zeros or [2] * len(target), grows=zeros is not None)
    if gauge.rank > len(target):
        raise Unfollowed
    return gauge.wider(len(target))
