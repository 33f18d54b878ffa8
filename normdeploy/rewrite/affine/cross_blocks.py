"""DepthToSpace and SpaceToDepth move channels into space and back, block by block.

DepthToSpace, channels [b, b, C] (mode DCR) or [C, b, b] (CRD) -> [C] at b times the size: behind it, each of the b * b
channels that become one takes that one's s and t; in front of it, they must agree. SpaceToDepth, [C] -> [b, b, C], is
the other way round.

Refused:
- the map varies along another axis than the channels;
- channels that become positions of one channel have different s or t (the result would vary in space).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import integer, required, string
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal

_Move = Callable[[ir.Node, AffineMap], AffineMap | Refusal]


def _positions_first(node: ir.Node) -> bool:
    """Tell whether the deep side's channels are [b * b, C] rather than [C, b * b]."""
    return node.op_type == "SpaceToDepth" or string(node, "mode", "DCR") == "DCR"


def _deepen(node: ir.Node, mapping: AffineMap) -> AffineMap | Refusal:
    """Return the map on the deep side: every position has its channel's s and t."""
    if not mapping.axes <= {1}:
        return Refusal(f"it varies along an axis that {describe(node)} rearranges", node)
    count = integer(node, "blocksize", 1) ** 2

    def follow(array: Array) -> Array:
        if array.shape[1] == 1:
            return array
        return np.concatenate([array] * count, axis=1) if _positions_first(node) else np.repeat(array, count, axis=1)

    return mapping.moved(follow)


def _flatten(node: ir.Node, mapping: AffineMap) -> AffineMap | Refusal:
    """Return the map on the wide side, if all positions of a channel agree."""
    if not mapping.axes <= {1}:
        return Refusal(f"it varies along an axis that {describe(node)} rearranges", node)
    count = integer(node, "blocksize", 1) ** 2
    arrays: list[Array] = []
    for array in (mapping.scale, mapping.shift):
        if array.shape[1] == 1:
            arrays.append(array)
            continue
        flat = array.reshape(-1)
        table = flat.reshape(count, -1) if _positions_first(node) else flat.reshape(-1, count).T
        if not (table == table[0]).all():
            return Refusal(f"channels that {describe(node)} turns into positions of one channel differ", node)
        arrays.append(table[0].reshape(1, -1, *array.shape[2:]))
    return AffineMap.of(arrays[0], arrays[1], mapping.rank)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Move the map from the result to the input."""
    move: _Move = _deepen if node.op_type == "DepthToSpace" else _flatten
    moved = move(node, mapping)
    if isinstance(moved, Refusal):
        return moved
    plan = search.into(required(node, 0), moved, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Move the map from the input to the result."""
    move: _Move = _flatten if node.op_type == "DepthToSpace" else _deepen
    moved = move(node, mapping)
    if isinstance(moved, Refusal):
        return moved
    plan = search.through(node.outputs[0], moved)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
