"""Activations: f(s x) = s f(x) for s >= 0 where f is positively homogeneous: Relu, LeakyRelu, PRelu.

Clip passes a map that is one number everywhere: s clip(x, l, h) + t = clip(s x + t, s l + t, s h + t) for s > 0.

Refused:
- the shift is not zero (Relu would cut elsewhere), or a scale is negative (the wrong side would be cut);
- any other activation; for Clip, a map that varies, or bounds that are computed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import derive, is_constant, optional, required
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region


def _homogeneous(node: ir.Node, mapping: AffineMap, between: str) -> Refusal | None:
    if not mapping.no_shift:
        return Refusal(f"{describe(node)} {between} and the shift is not zero", node)
    if not bool((mapping.scale >= 0).all()):
        return Refusal(f"{describe(node)} {between} and some channels are scaled by negative numbers", node)
    return None


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass a scale >= 0 without shift."""
    refused = _homogeneous(node, mapping, "stands in front of it")
    if refused is not None:
        return refused
    plan = search.into(required(node, 0), mapping, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass a scale >= 0 without shift."""
    if index != 0:
        return Refusal(f"{describe(node)} reads it as its slope", node)
    refused = _homogeneous(node, mapping, f"stands {search.next_linear(node)}")
    if refused is not None:
        return refused
    plan = search.through(node.outputs[0], mapping)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def _one_number(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    if mapping.axes or not mapping.positive:
        return Refusal(f"{describe(node)} cuts at fixed values, and its scale is not one positive number", node)
    for position in (1, 2):
        bound = optional(node, position)
        if bound is not None and not is_constant(bound):
            return Refusal(f"the bounds of {describe(node)} are computed at run time", node)
    return None


def _bounds(region: Region, node: ir.Node, scale: float, shift: float) -> list[ir.Value | None]:
    bounds: list[ir.Value | None] = []
    for position in range(1, len(node.inputs)):
        bound = optional(node, position)
        bounds.append(None if bound is None else derive(region, bound, lambda old: np.asarray(scale * old + shift)))
    return bounds


def clip_backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Scale and shift the bounds."""
    refused = _one_number(node, mapping)
    if refused is not None:
        return refused
    scale, shift = mapping.scale.item(), mapping.shift.item()
    plan = search.into(required(node, 0), mapping, node)
    if isinstance(plan, Refusal):
        return plan

    def build(region: Region) -> ir.Value:
        return region.replace(node, [plan.build(region), *_bounds(region, node, scale, shift)]).outputs[index]

    return BackwardPlan(build, (*plan.old, node), plan.into, plan.cost)


def clip_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Undo the map on the bounds."""
    refused = _one_number(node, mapping) if index == 0 else Refusal(f"{describe(node)} reads it as a bound", node)
    if refused is not None:
        return refused
    scale, shift = mapping.scale.item(), mapping.shift.item()
    plan = search.through(node.outputs[0], mapping)
    if isinstance(plan, Refusal):
        return plan

    def build(region: Region, raw: ir.Value) -> None:
        bounds = _bounds(region, node, 1 / scale, -shift / scale)
        plan.build(region, region.replace(node, [raw, *bounds]).outputs[0])

    return ForwardPlan(build, (node, *plan.old), plan.into, plan.cost)
