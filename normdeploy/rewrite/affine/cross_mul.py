"""Mul of two computed values, and Div: s * (a b) = (s a) b; a scale goes into one factor, or on from it to the result.
In front of both factors, (s a) (u b) = (s u) (a b).

Refused:
- the shift is not zero;
- behind, the factor asked is broadcast along the axis where s varies, or takes nothing;
- in front, the map stands in a denominator.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.axes import dims_of, restrict, widen
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import is_constant, required
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Give the scale to one factor (of a quotient, to the numerator)."""
    if not mapping.no_shift:
        return Refusal(f"{describe(node)} multiplies two computed values and the shift is not zero", node)
    positions = [0] if node.op_type == "Div" else [0, 1]
    positions.sort(key=lambda position: not is_constant(required(node, position)))
    first: Refusal | None = None
    for position in positions:
        value = required(node, position)
        dims = dims_of(value)
        scale = None if dims is None else restrict(mapping.scale, dims)
        if scale is None:
            continue
        before = search.attempt()
        plan = search.into(value, AffineMap(scale, np.zeros((1,) * scale.ndim)), node)
        if not isinstance(plan, Refusal):
            return pass_back(node, index, position, plan)
        search.give_up(before)
        first = first or plan
    return first or Refusal(f"the factors of {describe(node)} are broadcast along the axis where it varies", node)


def _unknown(node: ir.Node) -> Refusal:
    return Refusal(f"the rank of the result of {describe(node)} is not known", node)


def _shifted(node: ir.Node) -> Refusal:
    return Refusal(f"{describe(node)} multiplies it with a computed value and its shift is not zero", node)


def _divides(node: ir.Node) -> Refusal:
    return Refusal(f"{describe(node)} divides by it", node)


def join(node: ir.Node, maps: Mapping[int, AffineMap]) -> AffineMap | Refusal:
    """Return the map of a product whose factors carry scales."""
    dims = dims_of(node.outputs[0])
    if dims is None:
        return _unknown(node)
    if node.op_type == "Div":
        return _divides(node)
    if not all(mapping.no_shift for mapping in maps.values()):
        return _shifted(node)
    scale = np.ones((1,) * len(dims))
    for mapping in maps.values():
        scale = scale * widen(mapping.scale, len(dims))
    return AffineMap.of(scale, 0.0, len(dims))


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass the scale on to the result."""
    if not mapping.no_shift:
        return _shifted(node)
    if node.op_type == "Div" and index == 1:
        return _divides(node)
    dims = dims_of(node.outputs[0])
    if dims is None:
        return _unknown(node)
    scale = widen(mapping.scale, len(dims))
    plan = search.through(node.outputs[0], AffineMap(scale, np.zeros((1,) * scale.ndim)))
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
