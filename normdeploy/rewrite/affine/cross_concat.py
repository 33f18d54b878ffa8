"""Concat joins maps, and cuts them.

Behind: each operand gets its cut of s and t along the joined axis (the whole along the others), and all must take it.
In front of one operand: the other operands get s = 1, t = 0, and the joined map goes on behind the Concat.

Refused:
- behind, an operand does not take its part;
- the size of an operand along the joined axis is not known where s or t has to be cut or joined.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.affine.constant import integer, required
from normdeploy.rewrite.affine.cross import pass_on
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, joined
from normdeploy.rewrite.affine.search import Backward, Forward, describe


def _sizes(node: ir.Node, axis: int) -> list[int] | None:
    sizes: list[int] = []
    for position in range(len(node.inputs)):
        dims = dims_of(required(node, position))
        size = None if dims is None else dims[axis]
        if not isinstance(size, int):
            return None
        sizes.append(size)
    return sizes


def _unknown(node: ir.Node) -> Refusal:
    return Refusal(f"the sizes that {describe(node)} joins are not known", node)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Cut the map along the joined axis."""
    del index
    axis = integer(node, "axis", 1) % mapping.rank
    if axis in mapping.axes:
        sizes = _sizes(node, axis)
        if sizes is None:
            return _unknown(node)
        ends = np.cumsum(sizes)
        cuts = [slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]
    else:
        cuts = [slice(None)] * len(node.inputs)
    plans: list[BackwardPlan] = []
    for position, cut in enumerate(cuts):
        window = (*(slice(None),) * axis, cut)

        def follow(array: Array, window: tuple[slice, ...] = window) -> Array:
            return array if array.shape[axis] == 1 else array[window]

        plan = search.into(required(node, position), mapping.moved(follow), node)
        if isinstance(plan, Refusal):
            return plan
        plans.append(plan)
    return joined(node, plans)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Join the map with the identity on the other operands."""
    axis = integer(node, "axis", 1) % mapping.rank
    sizes = _sizes(node, axis)
    if sizes is None:
        return _unknown(node)

    def join(array: Array, neutral: float) -> Array:
        parts = []
        for position, size in enumerate(sizes):
            shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
            parts.append(np.broadcast_to(array, shape) if position == index else np.full(shape, neutral))
        return np.concatenate(parts, axis=axis)

    joined = AffineMap.of(join(mapping.scale, 1.0), join(mapping.shift, 0.0), mapping.rank)
    plan = search.through(node.outputs[0], joined)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
