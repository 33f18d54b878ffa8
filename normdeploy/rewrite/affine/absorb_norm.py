"""Statistics-computing norms take affine maps over: y = g n(x) + b.

Behind, LayerNormalization, RMSNormalization, InstanceNormalization, GroupNormalization: g' = s g, b' = s b + t, along
the axes of g and b.

In front, LayerNormalization, InstanceNormalization and GroupNormalization, with s and t the same for all that one
statistic averages over: n(s x + t; e) = sign(s) n(x; e / s^2). A shift is cancelled by the mean; one scale for all goes
into epsilon. RMSNormalization the same without shift. This is why a bias in front of an InstanceNormalization
is dead.

Refused:
- behind: the map varies along other axes than g and b; RMSNormalization has no b for a shift; g or b is computed;
- in front: the map varies along what one statistic averages over, |s| differs between channels (epsilon is one number),
  a scale is negative or zero, its square or the epsilon leaves the range of float32, or statistics are outputs that
  something reads.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    array_of,
    copy_cost,
    derive,
    dtype_of,
    fits,
    floating,
    integer,
    is_constant,
    optional,
    required,
    shape_of,
)
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region

_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

_LAYER = frozenset({"LayerNormalization", "RMSNormalization"})


def _parameter_axes(node: ir.Node, rank: int) -> tuple[int, ...]:
    """Return the axes of x that g and b span."""
    if node.op_type in _LAYER:
        return tuple(range(integer(node, "axis", -1) % rank, rank))
    return (1,)


def _one_per_group(node: ir.Node) -> bool:
    """Tell whether a GroupNormalization averages over each channel alone."""
    shape = required(node, 0).shape
    return node.op_type == "GroupNormalization" and shape is not None and shape[1] == integer(node, "num_groups", 1)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind the norm into its scale and bias."""
    del search
    if index != 0:
        return Refusal(f"it is a statistic of {describe(node)}", node)
    gain, bias = required(node, 1), optional(node, 2)
    if not is_constant(gain) or (bias is not None and not is_constant(bias)):
        return Refusal(f"the scale or bias of {describe(node)} is computed at run time", node)
    if node.op_type == "RMSNormalization" and not mapping.no_shift:
        return Refusal(f"{describe(node)} has no bias that could take the shift", node)
    spanned = _parameter_axes(node, mapping.rank)
    if not mapping.axes <= set(spanned):
        return Refusal(f"it varies along other axes than the scale of {describe(node)}", node)
    shape = shape_of(gain)
    if len(shape) != len(spanned):
        return Refusal(f"the scale of {describe(node)} is broadcast", node)

    def cut(array: Array) -> Array:
        return array.reshape([array.shape[axis] for axis in spanned])

    scale, shift = cut(mapping.scale), cut(mapping.shift)
    if np.broadcast_shapes(scale.shape, shift.shape, shape) != shape:
        return Refusal(f"the scale of {describe(node)} is shorter than what it varies along", node)  # grouped scales
    total = scale * (np.zeros(shape) if bias is None else array_of(bias)) + shift
    if not fits(dtype_of(gain), lambda: scale * array_of(gain)) or not fits(dtype_of(gain), lambda: total):
        return Refusal(f"the scale of {describe(node)} would overflow", node)

    def build(region: Region) -> ir.Value:
        new_gain = gain if mapping.no_scale else derive(region, gain, lambda array: scale * array)
        inputs = [node.inputs[0], new_gain]
        if bias is not None:
            inputs.append(derive(region, bias, lambda _old: total, shape))
        elif not mapping.no_shift:
            stem = str(gain.name).removesuffix(".weight")
            inputs.append(region.constant(lambda: total, shape, dtype_of(gain), name=f"{stem}.bias"))
        new = region.replace(node, inputs)
        for old, other in zip(node.outputs[1:], new.outputs[1:], strict=True):
            region.same(old, other)
        return new.outputs[0]

    extra = (0.0 if mapping.no_scale else copy_cost(gain, node)) + copy_cost(bias, node)
    return BackwardPlan(build, (node,), (node,), extra)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the norm into its epsilon."""
    del search
    if index != 0:
        return Refusal(f"{describe(node)} reads it as its scale or bias", node)
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return Refusal(f"the statistics of {describe(node)} are read", node)
    if node.op_type == "InstanceNormalization" or _one_per_group(node):
        averaged = set(range(2, mapping.rank))
    elif node.op_type in _LAYER:
        averaged = set(_parameter_axes(node, mapping.rank))
    else:
        averaged = set(range(1, mapping.rank))
    if mapping.axes & averaged:
        return Refusal(f"it varies along what {describe(node)} averages over", node)
    if node.op_type == "RMSNormalization" and not mapping.no_shift:
        return Refusal(f"{describe(node)} subtracts no mean that could cancel the shift", node)
    if mapping.scale_axes or not mapping.positive:
        return Refusal(f"{describe(node)} has one epsilon, and the scale is not one positive number", node)
    factor = mapping.scale.item()
    written = floating(node, "epsilon", 1e-5)
    epsilon = written / factor / factor
    in_reach = _SMALLEST <= factor * factor <= _LARGEST and (not written or _SMALLEST <= epsilon <= _LARGEST)
    if not in_reach:
        return Refusal(
            f"a scale of {factor:.3g} takes the epsilon of {describe(node)} out of the range of float32", node
        )

    def build(region: Region, raw: ir.Value) -> None:
        attributes = dict(node.attributes)
        attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilon)
        new = region.replace(node, [raw, *node.inputs[1:]], attributes=attributes)
        region.same(node.outputs[0], new.outputs[0])

    return ForwardPlan(build, (node,), (node,))
