"""Operators that only rearrange: Transpose, Reshape, Flatten, Squeeze, Unsqueeze, Expand, Tile.

The map follows its axis, by position (see :mod:`.axes`): Transpose permutes s and t; Reshape and its kin regroup
dimensions of equal products, so that a split or merged axis cuts, repeats or tiles s and t; Expand and Tile repeat x,
and s and t with it where they vary.

Refused:
- an unknown rank;
- the map varies along an axis that is merged with one of dynamic size (how often to repeat it is not known);
- behind a Reshape, the map differs between positions that the other side counts as one channel of a producer: not
  refused here, it simply varies along more axes, and the linear operator further on refuses it;
- behind Expand or Tile, the map varies along an axis that was repeated.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.rewrite.affine import axes
from normdeploy.rewrite.affine.axes import Dims, dims_of, restrict, widen
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import ints, optional, required
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array, compress
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal

_Follow = Callable[[Array], Array | None]


def _both(mapping: AffineMap, follow: _Follow) -> AffineMap | None:
    scale, shift = follow(mapping.scale), follow(mapping.shift)
    return None if scale is None or shift is None else AffineMap(compress(scale), compress(shift))


def _lost(node: ir.Node) -> Refusal:
    return Refusal(f"{describe(node)} merges or repeats the axis along which it varies", node)


def _permutation(node: ir.Node, rank: int) -> list[int]:
    return ints(node, "perm", range(rank)[::-1])


def transpose_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Undo the permutation on s and t."""
    inverse = np.argsort(_permutation(node, mapping.rank))
    plan = search.into(required(node, 0), mapping.moved(lambda array: array.transpose(inverse)), node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def transpose_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Permute s and t."""
    permutation = _permutation(node, mapping.rank)
    plan = search.through(node.outputs[0], mapping.moved(lambda array: array.transpose(permutation)))
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def _sides(node: ir.Node) -> tuple[Dims, Dims] | None:
    source, target = dims_of(required(node, 0)), dims_of(node.outputs[0])
    return None if source is None or target is None else (source, target)


def reshape_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Regroup s and t from the result's dimensions to the input's."""
    sides = _sides(node)
    moved = None if sides is None else _both(mapping, lambda array: axes.reshape(array, sides[1], sides[0]))
    if moved is None:
        return _lost(node)
    plan = search.into(required(node, 0), moved, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def reshape_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Regroup s and t from the input's dimensions to the result's."""
    sides = _sides(node)
    moved = None if sides is None else _both(mapping, lambda array: axes.reshape(array, sides[0], sides[1]))
    if moved is None or index != 0:
        return _lost(node)
    plan = search.through(node.outputs[0], moved)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def expand_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Cut s and t down to the input, which must have the axes along which they vary."""
    dims = dims_of(required(node, 0))
    moved = None if dims is None else _both(mapping, lambda array: restrict(array, dims))
    if moved is None:
        return _lost(node)
    plan = search.into(required(node, 0), moved, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def expand_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Give s and t the leading axes of the result; along repeated axes they were constant."""
    dims = dims_of(node.outputs[0])
    if dims is None or index != 0:
        return _lost(node)
    plan = search.through(node.outputs[0], mapping.moved(lambda array: widen(array, len(dims))))
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def _repeats(node: ir.Node, rank: int) -> list[int] | None:
    repeats = constant64(optional(node, 1))
    return [int(count) for count in repeats] if repeats is not None and repeats.size == rank else None


def tile_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass a map that does not vary along repeated axes."""
    repeats = _repeats(node, mapping.rank)
    if repeats is None or any(repeats[axis] != 1 for axis in mapping.axes):
        return _lost(node)
    plan = search.into(required(node, 0), mapping, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def tile_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Repeat s and t along the axes where they vary."""
    repeats = _repeats(node, mapping.rank)
    if repeats is None or index != 0:
        return _lost(node)

    def follow(array: Array) -> Array:
        return np.tile(array, [count if size != 1 else 1 for count, size in zip(repeats, array.shape, strict=True)])

    plan = search.through(node.outputs[0], mapping.moved(follow))
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
