"""Operators that carry a gauge from what they read to what they write: one row per operator."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.exponents import POWERS
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import Claim, composed
from normdeploy.verification.derivation.laws import computed_products, picked, pointwise, pooled
from normdeploy.verification.derivation.laws.pointwise import Reading
from normdeploy.verification.derivation.related.lost_digits import FORGOTTEN, forgets, still_lost
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.operands import kind
from normdeploy.verification.derivation.side.operator_sets import operands_of
from normdeploy.verification.derivation.side.zero_guards import smaller_guard


def confirm_carried(relation: Relation, node: ir.Node, origin: ir.Node, asked: Array | None = None) -> Finding:
    """Confirm an operator that reads scaled or shifted values.

    Args:
        node: of the file. origin: of the source, of the same kind.
        asked: the scale that the result is said to have.
    """
    average = computed_products.confirm_average(relation, node, origin) if kind(node) == "ReduceSum" else ""
    if isinstance(average, Proof):
        return average
    if kind(node) not in _CARRIES or kind(origin) != kind(node):
        return f"{kind(node)} has no law for what is scaled or shifted"
    text = difference(relation.source, origin, relation.file, node)
    if text:
        return f"{kind(node)}: {text}"
    ours, theirs = operands_of(relation.source, origin, relation.file, node)
    if len(ours) != len(theirs) and kind(node) != "Pad":
        return f"{kind(node)} reads {len(theirs)} operands; expected {len(ours)}"
    reason: Finding = "what it reads is not known"
    opposed = kind(node) == "Sub"  # b - a is -(a - b), as under a square
    turns = len(theirs) == 2 and (opposed or has(node, Trait.COMMUTES))
    orders = [theirs, theirs[::-1]] if turns else [theirs]
    for order in orders:
        pairs = list(zip(ours, order, strict=False))
        claims = [relation.by(w, v) for w, v in pairs]
        if kind(node) in computed_products.PRODUCTS:
            claims = [c or relation.beginning_again(w, v) for c, (w, v) in zip(claims, pairs, strict=True)]
        if claims[0] is None and not (ours[0] is not None and relation.source.is_sized(ours[0])):
            continue
        for_carry = node if order is theirs else _turned(node)
        found = carried(Reading(relation, for_carry, origin, claims, asked))
        if not isinstance(found, tuple):
            reason = found
            continue
        told = found if len(node.outputs) == 1 else (np.ones(()), np.zeros(()))  # places are told besides
        adds = _CARRIES[kind(node)] is pointwise.total
        lost = still_lost(claims, told[1], in_place=kind(node) not in _ELSEWHERE, adds=adds)
        if forgets(claims, *told, lost):
            reason = f"{kind(node)}: {FORGOTTEN}"
            continue
        scale, shift = (-found[0], found[1]) if opposed and order is not theirs else found
        assumed = any(claim is not None and claim.assumed for claim in claims)
        guard = smaller_guard(*(claim.guard for claim in claims if claim is not None))
        again = computed_products.axis_again(node, claims) if kind(node) in computed_products.PRODUCTS else None
        gauge = composed(scale, shift, np.ones(()), np.zeros(()))
        known = Claim(node.outputs[0], *gauge, assumed, guard=guard, again=again, lost=lost)
        places = zip(origin.outputs[1:], node.outputs[1:], strict=False)  # of maxima: not what stands there
        stay = ((w, Claim(v, np.ones(()), np.zeros(()), assumed)) for w, v in places)
        return Proof("the gauge passes", ((origin.outputs[0], known), *stay), (node,))
    return reason


def carried(at: Reading) -> pointwise.Carried:
    """Return the gauge of a result by those of what is read, or why there is none."""
    carry = _CARRIES.get(kind(at.node))
    return f"{kind(at.node)} has no law for what is scaled or shifted" if carry is None else carry(at)


def _turned(node: ir.Node) -> ir.Node:
    return ir.Node(node.domain, node.op_type, list(node.inputs)[::-1])


_CARRIES: dict[str, pointwise.Carry] = {
    "Relu": pointwise.homogeneous, "LeakyRelu": pointwise.homogeneous, "Abs": pointwise.homogeneous,
    "PRelu": pointwise.homogeneous, **dict.fromkeys(POWERS, pointwise.power),
    **dict.fromkeys(("Sign", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), pointwise.sign),
    "Add": pointwise.total, "Sub": pointwise.total, "Sum": pointwise.total,
    "Mul": pointwise.product, "Div": pointwise.product,
    "MatMul": computed_products.product, "Einsum": computed_products.product,
    "Max": pointwise.choice, "Min": pointwise.choice, "Clip": pointwise.clip, "Where": pointwise.where,
    "MaxPool": pooled.pool, "AveragePool": pooled.pool,
    "GlobalAveragePool": pooled.pool, "GlobalMaxPool": pooled.pool,
    "ReduceMean": pooled.reduction, "ReduceSum": pooled.reduction,
    "ReduceMax": pooled.reduction, "ReduceMin": pooled.reduction,
    "LpPool": pooled.pool, "GlobalLpPool": pooled.pool, "CumSum": pooled.running_sum, "TopK": pooled.largest,
    **dict.fromkeys(("ArgMax", "ArgMin", "Hardmax"), pooled.largest), "Trilu": pointwise.masked,
    "ReduceLogSumExp": pooled.reduction, "Col2Im": pooled.picture,
    "ReduceL1": pooled.reduction, "ReduceL2": pooled.reduction,
    "Softmax": pooled.softmax, "LogSoftmax": pooled.softmax, "Resize": pooled.resize,
    "GridSample": pooled.grid_sample, "Pad": pooled.pad, "Concat": picked.joined,
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), picked.picked),
}  # fmt: skip
"""How each operator carries a gauge."""

_ELSEWHERE = frozenset({"Concat", "Gather", "GatherElements", "GatherND", *computed_products.PRODUCTS})
"""Operators that may put what they read to another place along an axis where it is shifted differently."""
