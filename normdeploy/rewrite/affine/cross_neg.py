"""Neg: s * (-x) + t = -(s x - t); the shift changes its sign on the way through. Always legal."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass the map with its shift negated."""
    plan = search.into(required(node, 0), mapping.with_shift(-mapping.shift), node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass the map with its shift negated: -(s x + t) = s (-x) - t."""
    plan = search.through(node.outputs[0], mapping.with_shift(-mapping.shift))
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
