"""Operators that average, take a maximum, or interpolate over axes along which the map does not vary.

- Averages whose weights sum to one commute with any map: AveragePool, GlobalAveragePool, ReduceMean, Resize.
- AveragePool that counts the zeros it pads with averages fewer than n real values at the border: only t = 0 passes.
- ReduceSum over n values: s * sum + n * t, n static.
- A maximum commutes where s >= 0: MaxPool, GlobalMaxPool, ReduceMax, ReduceMin.

Refused:
- the map varies along an axis that is pooled, reduced or resized;
- t != 0 and counted padding (``count_include_pad`` with pads, ``auto_pad`` SAME or ``ceil_mode``);
- a negative scale and a maximum: order-reversing channels would need the minimum;
- Resize that crops (it may read outside); axes or counts that are not known.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.rewrite.affine.axes import dims_of, same_size
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import integer, ints, optional, required, string
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal

_MAXIMA = frozenset({"MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"})


def _pooled(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    """Return why a map of the operator's own rank may not cross a pooling operator."""
    if not mapping.axes <= {0, 1}:
        return Refusal(f"it varies along an axis that {describe(node)} pools over", node)
    if node.op_type == "AveragePool" and not mapping.no_shift and _counts_padding(node):
        return Refusal(f"{describe(node)} counts the zeros of its padding and the shift is not zero", node)
    return _maximum(node, mapping)


def _maximum(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    if node.op_type not in _MAXIMA:
        return None
    negative = np.flatnonzero(mapping.scale.reshape(-1) < 0)
    if negative.size:
        return Refusal(
            f"{describe(node)} takes a maximum and channel {negative[0]} ({negative.size} in all) is scaled by a "
            "negative number",
            node,
        )
    return None


def _counts_padding(node: ir.Node) -> bool:
    if not integer(node, "count_include_pad", 0):
        return False
    automatic = string(node, "auto_pad", "NOTSET")
    pads = any(ints(node, "pads", ()))
    return pads or automatic.startswith("SAME") or bool(integer(node, "ceil_mode", 0))


def pool_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass the map through a pool."""
    assert index == 0  # the indices of a MaxPool are integers
    refused = _pooled(node, mapping)
    if refused is not None:
        return refused
    plan = search.into(required(node, 0), mapping, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def pool_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass the map through a pool; indices of maxima stay what they are."""
    refused = _pooled(node, mapping)
    if refused is not None:
        return refused
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return Refusal(f"the indices that {describe(node)} found are read", node)
    plan = search.through(node.outputs[0], mapping)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def _reduced(node: ir.Node, rank: int) -> list[int] | None:
    """Return the axes a Reduce operator reduces; None if they are computed."""
    operand = optional(node, 1)
    if operand is None:
        listed = ints(node, "axes", ())
        if listed:
            return sorted(axis % rank for axis in listed)
        return [] if integer(node, "noop_with_empty_axes", 0) else list(range(rank))
    axes = constant64(operand)
    if axes is None:
        return None
    if axes.size == 0:
        return [] if integer(node, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes.reshape(-1))


def _count(node: ir.Node, axes: list[int]) -> int | None:
    dims = dims_of(required(node, 0))
    sizes = [] if dims is None else [dims[axis] for axis in axes]
    static = [size for size in sizes if isinstance(size, int)]
    return math.prod(static) if dims is not None and len(static) == len(sizes) else None


def _reduction(node: ir.Node, mapping: AffineMap, axes: list[int]) -> tuple[AffineMap, float] | Refusal:
    """Return the map beside a reduction and the number its shift is multiplied by from input to result."""
    refused = _maximum(node, mapping)
    if refused is not None:
        return refused
    if node.op_type != "ReduceSum" or mapping.no_shift:
        return mapping, 1.0
    count = _count(node, axes)
    if not count:
        return Refusal(f"how many values {describe(node)} sums is not known and the shift is not zero", node)
    return mapping, float(count)


def reduce_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass the map through a reduction; give it back the reduced axes."""
    dims = dims_of(required(node, 0))
    axes = None if dims is None else _reduced(node, len(dims))
    if dims is None or axes is None:
        return Refusal(f"the axes that {describe(node)} reduces are not known", node)
    found = _reduction(node, mapping, axes)
    if isinstance(found, Refusal):
        return found
    if not integer(node, "keepdims", 1):
        mapping = mapping.moved(lambda array: np.expand_dims(array, axes))
    plan = search.into(required(node, 0), mapping.with_shift(mapping.shift / found[1]), node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def reduce_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass the map through a reduction over axes along which it does not vary."""
    axes = _reduced(node, mapping.rank)
    if axes is None or index != 0:
        return Refusal(f"the axes that {describe(node)} reduces are not known", node)
    if mapping.axes & set(axes):
        return Refusal(f"it varies along an axis that {describe(node)} reduces", node)
    found = _reduction(node, mapping, axes)
    if isinstance(found, Refusal):
        return found
    moved = mapping.with_shift(mapping.shift * found[1])

    def follow(array: Array) -> Array:
        return array if integer(node, "keepdims", 1) else np.squeeze(array, tuple(axes))

    if integer(node, "keepdims", 1) == 0 and len(axes) == mapping.rank:
        return Refusal(f"{describe(node)} reduces everything to one number", node)
    plan = search.through(node.outputs[0], moved.moved(follow))
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def _resized(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    if string(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return Refusal(f"{describe(node)} crops and may read outside its input", node)
    before, after = dims_of(required(node, 0)), dims_of(node.outputs[0])
    if before is None or after is None:
        return Refusal(f"the rank of {describe(node)} is not known", node)
    if not all(same_size(before[axis], after[axis]) for axis in mapping.axes):
        return Refusal(f"it varies along an axis that {describe(node)} resizes", node)
    return None


def resize_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass the map: interpolation weights sum to one."""
    refused = _resized(node, mapping)
    if refused is not None:
        return refused
    plan = search.into(required(node, 0), mapping, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def resize_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass the map: interpolation weights sum to one."""
    refused = _resized(node, mapping) if index == 0 else Refusal(f"{describe(node)} reads it as a size", node)
    if refused is not None:
        return refused
    plan = search.through(node.outputs[0], mapping)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
