"""Why a map has to stay, in a sentence, from the proof that it does (:mod:`.contradiction`).

A proof is a cycle of ties (what lies in front of the map and what lies behind it meet again, with another factor), or a
chain from one restriction to another; the sentence names the restrictions, the chain every operator between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.affine.affine_node import affine_map
from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.affine.operator_names import describe, describe_end
from normdeploy.rewrite.gauge.chain import Limit, between, chain_of
from normdeploy.rewrite.gauge.contradiction import proof_of
from normdeploy.rewrite.gauge.expression_rows import Rows, out_of_range
from normdeploy.rewrite.gauge.gauge import Gauge, Tie, Ties, common
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.system import Conflict

_SHOWN = 3
"""Restrictions, and operators between them, that the sentence names."""


@dataclass(frozen=True)
class Reason:
    """Why a map stays.

    Args:
        text: a sentence a user can act on.
        nodes: those that restrict. stating: those that state what contradicts; none where nothing does.
        about: of what the contradiction is: whether of scales, and their unknowns.
        told: finds the chain.
    """

    text: str
    nodes: tuple[ir.Node, ...] = ()
    stating: frozenset[ir.Node] = frozenset()
    about: tuple[bool, frozenset[int]] = (False, frozenset())
    told: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def chain(self) -> tuple[str, ...]:
        """Every operator of the contradiction in the order of the graph, with what it asks."""
        return self.told()


def reason_of_conflict(node: ir.Node, conflict: Conflict, ties: Ties) -> Reason:
    """Return why a map stays whose equation contradicts what holds."""
    scale = conflict.system.multiplicative
    what = "scale" if scale else "shift"
    if scale and out_of_range(np.array(conflict.found)).any():
        return Reason("its scale times those of the maps beside it is more, or less, than float64 holds")
    whole = proof_of(conflict)
    proof = [tie for tie in whole.ties if tie.node is not node]
    order = ties.order
    place = order[node]
    limits = list(dict.fromkeys(_limits(node, proof, ties, scale=scale)))
    limits += _given_there(node, conflict, ties)
    told = dict.fromkeys((limit.node is None or order.get(limit.node, place) > place, limit.text) for limit in limits)
    behind = [text for after, text in told if after]
    front = [text for after, text in told if not after]
    path = [tie.node for tie in proof if tie.node is not None and not tie.clause]
    if not front:
        front = list(dict.fromkeys(text for other in path if order[other] < place for text in _cancelled(other, ties)))
    front = front or _narrow(node, ties, scale=scale)
    cause = f"its {what} cannot leave"
    if conflict.because is not None:
        channel, count = _negative(node)
        cause = f"channel {channel} ({count} in all) is scaled by a negative number" if count else cause
    parts = []
    if behind:
        parts.append("behind it " + "; ".join(behind[:_SHOWN]))
    if front:
        parts.append("in front of it " + "; ".join(front[:_SHOWN]))
    if not parts:
        meet = [other for other in path if order.get(other, place) > place] or path
        name = describe(meet[-1]) if meet else "a later operator"
        parts.append(f"what is in front of it and what is behind it meet in {name}, and not by the same {what}")
    stating = frozenset(tie.node for tie in proof if tie.node is not None)
    passing = between(node, stating, whole.unknowns, ties, scale=scale)
    summing = [other for other in passing if has(other, Trait.ADDS)]  # one scale for several values, in no equation
    through = [describe(other) for other in sorted({*path, *summing}, key=lambda other: order.get(other, place))]
    way = ""
    if through and (behind or front):
        way = f" (tied by {', '.join(through[:_SHOWN])}{', ...' if len(through) > _SHOWN else ''})"
    asking = [tie.node for tie in proof if tie.node is not None and tie.clause]
    asking += [limit.node for limit in limits if limit.node is not None and not limit.given]
    chain = partial(chain_of, node, proof, limits, passing, ties)
    about = scale, whole.unknowns
    return Reason(f"{cause}: {', and '.join(parts)}{way}", tuple(dict.fromkeys(asking)), stating, about, chain)


def _negative(node: ir.Node) -> tuple[int, int]:
    found = np.flatnonzero(affine_map(node).scale.reshape(-1) < 0)
    return (int(found[0]), len(found)) if found.size else (0, 0)


def _limits(node: ir.Node, proof: list[Tie], ties: Ties, *, scale: bool) -> list[Limit]:
    """Return the restrictions in a proof."""
    found: list[Limit] = []
    for tie in proof:
        if tie.clause and tie.node is not None:
            found.append(Limit(tie.node, f"{describe(tie.node)} {tie.clause}"))
        elif tie.clause:
            found.append(Limit(None, f"{tie.subject} {tie.clause}"))
    tied = [tie.node for tie in proof if tie.node is not None and not tie.clause]
    for other in (node, *tied):
        for value in other.inputs:
            given = _given(value, ties, scale=scale)
            if given is not None:
                found.append(given)
    return found


def _given_there(node: ir.Node, conflict: Conflict, ties: Ties) -> list[Limit]:
    """Return who makes the part of a map's input that contradicts, where others make the rest (Concat)."""
    value, result = node.inputs[0], ties.of[node.outputs[0]]
    gauge = None if value is None else ties.of.get(value)
    if gauge is None or value is None or conflict.equation.why(conflict.row) != Tie(node):
        return []
    scale = conflict.system.multiplicative
    unknowns = gauge.scale_of if scale else gauge.shift_of
    cells = np.broadcast_to(unknowns, np.broadcast_shapes(unknowns.shape, result.cells)).reshape(-1)
    if unknowns.all() or not unknowns.any() or conflict.row >= len(cells) or cells[conflict.row]:
        return []
    seen, queue = {value}, deque([value])
    while queue:
        producer = queue.popleft().producer()
        for inner in () if producer is None else producer.inputs:
            if inner is None or inner in seen or inner not in ties.of:
                continue
            seen.add(inner)
            found = _given(inner, ties, scale=scale)
            if found is not None:
                return [found]
            part = ties.of[inner].scale_of if scale else ties.of[inner].shift_of
            if not part.all():
                queue.append(inner)
    return []


def _given(value: ir.Value | None, ties: Ties, *, scale: bool) -> Limit | None:
    """Return who makes a value that nothing in front of it can change; None for one that can be changed."""
    way: list[ir.Node] = []
    for _ in range(64):
        if value is None or constant_tensor(value) is not None:
            return None
        gauge = ties.of.get(value)
        unknowns = None if gauge is None else gauge.scale_of if scale else gauge.shift_of
        if unknowns is None or unknowns.any():
            return None
        producer = value.producer()
        if producer is None or producer.graph is not ties.graph:
            told = f"the value '{value.name}' comes from outside this control-flow body"
            if value.is_graph_input():
                told = f"{describe_end(value, value.graph or ties.graph, 'input')} is given"
            return Limit(next(iter(ties.graph), None), told, tuple(way), given=True)
        inner = _passed_on(producer, ties)
        inner_gauge = None if inner is None else ties.of[inner]
        if inner_gauge is None or (inner_gauge.scale_of if scale else inner_gauge.shift_of).any():
            clause = ties.stiff.get(producer, "has no weights that could change what it writes")
            clause = (ties.unscaled if scale else ties.unshifted).get(producer, clause)
            return Limit(producer, f"{describe(producer)} {clause}", tuple(way))
        value = inner
        way.append(producer)
    return None


def _narrow(node: ir.Node, ties: Ties, *, scale: bool) -> list[str]:
    """Return who in front of a map writes one scale (or shift) for several places where the map varies."""
    value, mapping = node.inputs[0], affine_map(node)
    array = mapping.scale if scale else mapping.shift
    gauge = None if value is None else ties.of.get(value)
    if gauge is None:
        return []
    told_apart = all(gauge.cells[axis] > 1 or size == 1 for axis, size in enumerate(array.shape, -array.ndim))
    if told_apart and _distinct(gauge) == gauge.scale_of.size:
        return []
    for _ in range(64):
        producer = None if value is None else value.producer()
        if producer is None or producer.graph is not ties.graph:
            return []
        inner = None if has(producer, Trait.REPEATS) else _passed_on(producer, ties)
        before = None if inner is None else ties.of[inner]
        if before is None or (before.scale_of.size, _distinct(before)) != (gauge.scale_of.size, _distinct(gauge)):
            system = ties.scales if scale else ties.shifts
            whys = [held.stated.whys[at] for held in system.held for at in sorted(held.stated.places(held.origin))]
            clauses = [why.clause for why in whys if isinstance(why, Tie) and why.node is producer and why.clause]
            what = f"has one {'scale' if scale else 'shift'} for several places where it varies"
            return [f"{describe(ties.parts.get(producer, producer))} {clauses[-1] if clauses else what}"]
        value, gauge = inner, before
    return []


def _cancelled(node: ir.Node, ties: Ties) -> list[str]:
    """Return that a quotient has no scale because both its operands have the same, as x / |x| has none."""
    if node.op_type != "Div":
        return []
    left, right = (ties.of.get(required(node, index)) for index in (0, 1))
    if left is None or right is None or not left.scale_of.any() or not right.scale_of.any():
        return []
    cells = common(left, right)
    quotient = Rows.of((left.spread(cells).scale_of, 1.0), (right.spread(cells).scale_of, -1.0), constant=1.0)
    if ties.scales.reduce(quotient).coefficients.any():
        return []
    return [f"{describe(node)} divides by what has the same scale, and every scale cancels"]


def _distinct(gauge: Gauge) -> int:
    return len(set(zip(gauge.scale_of.reshape(-1).tolist(), gauge.shift_of.reshape(-1).tolist(), strict=True)))


def _passed_on(node: ir.Node, ties: Ties) -> ir.Value | None:
    """Return the operand of which an operator passes the gauge on; None for one that makes a gauge of its own."""
    rule = rule_of(node)
    operands = [value for value in dict.fromkeys(node.inputs) if value is not None and value in ties.of]
    passes = Trait.MOVES | Trait.HOMOGENEOUS | Trait.CONVERTS | Trait.EXACT
    if rule is None or rule.absorbs or len(operands) != 1 or not has(node, passes):
        return None
    return operands[0]
