"""Concat joins maps, and cuts them.

Behind: each operand gets its cut of s and t along the joined axis (the whole along the others), and all must take it.
In front of some operands: the others get s = 1, t = 0, and the joined map goes on behind the Concat.

Refused:
- behind, an operand does not take its part;
- the size of an operand along the joined axis is not known where s or t has to be cut or joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import integer, required
from normdeploy.rewrite.affine.cross import pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array, identity
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, joined


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


def join(node: ir.Node, maps: Mapping[int, AffineMap]) -> AffineMap | Refusal:
    """Return the joined map; operands without one have s = 1, t = 0."""
    first = next(iter(maps.values()))
    axis = integer(node, "axis", 1) % first.rank
    everywhere = len(maps) == len(node.inputs) and all(mapping.same(first) for mapping in maps.values())
    if everywhere and axis not in first.axes:
        return first
    sizes = _sizes(node, axis)
    if sizes is None:
        return _unknown(node)
    neutral = identity(first.rank)

    def written(arrays: Sequence[Array]) -> Array:
        """Write s or t of all operands out along the joined axis, and join them."""
        common = np.broadcast_shapes(*(np.take(array, [0], axis=axis).shape for array in arrays))
        shapes = [(*common[:axis], size, *common[axis + 1 :]) for size in sizes]
        parts = [np.broadcast_to(array, shape) for array, shape in zip(arrays, shapes, strict=True)]
        return np.concatenate(parts, axis=axis)

    whole = [maps.get(position, neutral) for position in range(len(sizes))]
    scale, shift = written([item.scale for item in whole]), written([item.shift for item in whole])
    return AffineMap.of(scale, shift, first.rank)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Join the map with the identity on the other operands."""
    moved = join(node, {index: mapping})
    if isinstance(moved, Refusal):
        return moved
    plan = search.through(node.outputs[0], moved)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
