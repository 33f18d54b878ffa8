"""Add, Sub, Sum pass a map on to all their operands: s * (a + b) + t = (s a + t) + s b.

Behind: the scale goes into every operand, the shift into one, and only if every one takes it; a constant operand takes
anything (this is how the bias Add of a Linear absorbs).

In front, for a map without scale: (x + t) + b = x + (b + t) where b takes the shift at no cost (it ends in a bias),
else (x + b) + t, else b takes it at some cost. With a constant c for b, any map: (s x + t) + c = s x + (t + c), and the
sum is gone. In front of all operands, with one scale: (s a + t) + (s b + u) = s (a + b) + (t + u).

Refused:
- an operand does not take its part, or is broadcast along an axis where s varies;
- in front, s is not 1 and another operand is computed: it would have to be divided by s;
- in front of several operands, their scales differ.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.axes import dims_of, restrict, widen
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import array_of, is_constant, required
from normdeploy.rewrite.affine.cross import pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region, joined


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass a map behind the sum on to every operand."""
    del index
    operands = [required(node, position) for position in range(len(node.inputs))]
    # who takes the shift: a constant if there is one, else whoever can; a subtrahend would need -t
    takers = [0] if mapping.no_shift else sorted(range(len(operands)), key=lambda at: not is_constant(operands[at]))
    first: Refusal | None = None
    for taker in takers:
        before = search.attempt()
        plans = _plan(node, operands, mapping, taker, search)
        if not isinstance(plans, Refusal):
            return joined(node, plans)
        search.give_up(before)
        first = first or plans
    assert first is not None
    return first


def _plan(
    node: ir.Node, operands: list[ir.Value], mapping: AffineMap, taker: int, search: Backward
) -> list[BackwardPlan] | Refusal:
    plans: list[BackwardPlan] = []
    for position, value in enumerate(operands):
        part = mapping if position == taker else mapping.without_shift()
        if position == taker and node.op_type == "Sub" and position == 1:
            part = mapping.with_shift(-mapping.shift)
        if not is_constant(value):
            dims = dims_of(value)
            scale = None if dims is None else restrict(part.scale, dims)
            shift = None if dims is None else restrict(part.shift, dims)
            if scale is None or shift is None:
                return Refusal(f"an operand of {describe(node)} is broadcast along the axis where it varies", node)
            part = AffineMap(scale, shift)
        plan = search.into(value, part, node)
        if isinstance(plan, Refusal):
            return plan
        plans.append(plan)
    return plans


def _with_constant(node: ir.Node, index: int, mapping: AffineMap) -> AffineMap | None:
    """Return the map of ``node``'s result, which adds to or subtracts from it one constant that keeps its shape."""
    if len(node.inputs) != 2 or not is_constant(required(node, 1 - index)):
        return None
    own, whole = dims_of(required(node, index)), dims_of(node.outputs[0])
    other = array_of(required(node, 1 - index))
    if own is None or own != whole or other.ndim > mapping.rank:
        return None
    if any(size not in (1, dim) for size, dim in zip(other.shape[::-1], own[::-1], strict=False)):
        return None
    subtracts = node.op_type == "Sub"
    then = AffineMap.of(
        -1.0 if subtracts and index == 1 else 1.0, -other if subtracts and index == 0 else other, mapping.rank
    )
    return mapping.then(then)


def _another(node: ir.Node) -> Refusal:
    return Refusal(f"{describe(node)} adds another branch to it, which its scale does not apply to", node)


def _sign(node: ir.Node, index: int) -> float:
    return -1.0 if node.op_type == "Sub" and index == 1 else 1.0


def _unknown(node: ir.Node) -> Refusal:
    return Refusal(f"the rank of the result of {describe(node)} is not known", node)


def join(node: ir.Node, maps: Mapping[int, AffineMap]) -> AffineMap | Refusal:
    """Return the map of a sum whose operands carry maps of one scale."""
    dims = dims_of(node.outputs[0])
    if dims is None:
        return _unknown(node)
    rank, first = len(dims), next(iter(maps.values()))
    scale, shift = widen(first.scale, rank), np.zeros((1,) * rank)
    if len(maps) < len(node.inputs) and not first.no_scale:
        return _another(node)
    for index, mapping in maps.items():
        if not np.array_equal(widen(mapping.scale, rank), scale):
            return Refusal(f"{describe(node)} adds branches that are scaled differently", node)
        shift = shift + _sign(node, index) * widen(mapping.shift, rank)
    return AffineMap.of(scale, shift, rank)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass a shift in front of the sum on to its result."""
    if not mapping.no_scale:
        joined = _with_constant(node, index, mapping)
        if joined is not None:
            plan = search.through(node.outputs[0], joined)
            return (
                plan if isinstance(plan, Refusal) else ForwardPlan(plan.build, (node, *plan.old), plan.into, plan.cost)
            )
        return _another(node)
    result = node.outputs[0]
    dims = dims_of(result)
    if dims is None or len(dims) < mapping.rank:
        return _unknown(node)
    aside = _aside(node, index, mapping, len(dims), search)
    if aside is not None and aside.cost == 0:
        search.visited.update(aside.old)
        return aside
    shift = widen(_sign(node, index) * mapping.shift, len(dims))
    before = search.attempt()
    plan = search.through(result, AffineMap.of(1.0, shift, len(dims)))
    if isinstance(plan, Refusal) and aside is not None:
        search.give_up(before)
        search.visited.update(aside.old)
        return aside
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)


def _aside(node: ir.Node, index: int, mapping: AffineMap, rank: int, search: Forward) -> ForwardPlan | None:
    """Plan to give a shift in front of one operand to another; None if none takes it."""
    found: list[ForwardPlan] = []
    for position in range(len(node.inputs)):
        value = required(node, position)
        dims = dims_of(value)
        if position == index or value is node.inputs[index] or dims is None:
            continue
        sign = _sign(node, index) * _sign(node, position)
        shift = restrict(widen(sign * mapping.shift, rank), dims)
        if shift is None:
            continue
        plan = search.aside(value, AffineMap.of(1.0, shift, len(dims)), node)
        if plan is not None:
            found.append(_taken_aside(node, index, position, plan))
    return min(found, key=lambda plan: plan.cost, default=None)


def _taken_aside(node: ir.Node, index: int, position: int, plan: BackwardPlan) -> ForwardPlan:
    def build(region: Region, raw: ir.Value) -> None:
        inputs = list(node.inputs)
        inputs[index], inputs[position] = raw, plan.build(region)
        region.same(node.outputs[0], region.replace(node, inputs).outputs[0])

    return ForwardPlan(build, (*plan.old, node), plan.takers or (node,), plan.cost)
