"""Why a map has to stay, in a sentence, from the proof that it does (:mod:`.proof`).

A proof is a cycle of ties (what lies in front of the map and what lies behind it meet again, with another factor), or a
chain from one restriction to another; the sentence names the restrictions, the chain every operator between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.node import affine_map
from normdeploy.rewrite.gauge.gauge import Gauge, Tie, Ties
from normdeploy.rewrite.gauge.proof import proof_of
from normdeploy.rewrite.gauge.system import Conflict

_SHOWN = 3
"""Restrictions, and operators between them, that the sentence names."""


@dataclass(frozen=True)
class Reason:
    """Why a map stays.

    Args:
        text: a sentence a user can act on.
        chain: every operator of the contradiction in the order of the graph, with what it asks.
        nodes: those that restrict.
    """

    text: str
    chain: tuple[str, ...] = ()
    nodes: tuple[ir.Node, ...] = ()

    def __str__(self) -> str:
        return self.text


def reason_of_conflict(node: ir.Node, conflict: Conflict, ties: Ties) -> Reason:
    """Return why a map stays whose equation contradicts what holds."""
    what = "scale" if conflict.system.multiplicative else "shift"
    sign = conflict.sign and conflict.system.multiplicative
    proof = [tie for tie in proof_of(conflict) if tie.node is not node]
    order = ties.order
    place = order[node]
    limits = list(dict.fromkeys(_limits(node, proof, ties, scale=conflict.system.multiplicative)))
    limits += _given_there(node, conflict, ties)
    behind = [text for other, text in limits if other is None or order.get(other, place) > place]
    front = [text for other, text in limits if other is not None and order.get(other, place) <= place]
    front = front or _narrow(node, ties, scale=conflict.system.multiplicative)
    path = [tie.node for tie in proof if tie.node is not None and not tie.clause]
    cause = f"its {what} cannot leave"
    if sign:
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
    through = [describe(other) for other in dict.fromkeys(path)]
    way = ""
    if through and (behind or front):
        way = f" (tied by {', '.join(through[:_SHOWN])}{', ...' if len(through) > _SHOWN else ''})"
    asking = [tie.node for tie in proof if tie.node is not None and tie.clause]
    asking += [other for other, text in limits if other is not None and text.startswith(describe(other))]
    restricting = tuple(dict.fromkeys(asking))
    return Reason(f"{cause}: {', and '.join(parts)}{way}", tuple(_chain(proof, limits, order)), restricting)


def _chain(proof: Iterable[Tie], limits: list[tuple[ir.Node | None, str]], order: dict[ir.Node, int]) -> list[str]:
    named: dict[str, int] = {}
    for tie in proof:
        if tie.node is not None:
            text = f"{describe(tie.node)} {tie.clause}".strip()
            named.setdefault(text, order.get(tie.node, len(order)))
        else:
            named.setdefault(f"{tie.subject} {tie.clause}", len(order))
    for other, text in limits:
        named.setdefault(text, -1 if other is None else order.get(other, -1))
    return sorted(named, key=lambda text: named[text])


def _negative(node: ir.Node) -> tuple[int, int]:
    found = np.flatnonzero(affine_map(node).scale.reshape(-1) < 0)
    return (int(found[0]), len(found)) if found.size else (0, 0)


def _limits(node: ir.Node, proof: list[Tie], ties: Ties, *, scale: bool) -> list[tuple[ir.Node | None, str]]:
    """Return the restrictions in a proof: who restricts, and the clause."""
    found: list[tuple[ir.Node | None, str]] = []
    for tie in proof:
        if tie.clause and tie.node is not None:
            found.append((tie.node, f"{describe(tie.node)} {tie.clause}"))
        elif tie.clause:
            found.append((None, f"{tie.subject} {tie.clause}"))
    tied = [tie.node for tie in proof if tie.node is not None and not tie.clause]
    for other in (node, *tied):
        for value in other.inputs:
            given = _given(value, ties, scale=scale)
            if given is not None:
                found.append(given)
    return found


def _given_there(node: ir.Node, conflict: Conflict, ties: Ties) -> list[tuple[ir.Node | None, str]]:
    """Return who makes the part of a map's input that contradicts, where others make the rest (Concat)."""
    value, result = node.inputs[0], ties.of[node.outputs[0]]
    gauge = None if value is None else ties.of.get(value)
    if gauge is None or value is None or conflict.equation.why != Tie(node):
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


def _given(value: ir.Value | None, ties: Ties, *, scale: bool) -> tuple[ir.Node | None, str] | None:
    """Return who makes a value that nothing in front of it can change; None for one that can be changed."""
    for _ in range(64):
        if value is None or constant_tensor(value) is not None:
            return None
        gauge = ties.of.get(value)
        unknowns = None if gauge is None else gauge.scale_of if scale else gauge.shift_of
        if unknowns is None or unknowns.any():
            return None
        producer = value.producer()
        if producer is None or producer.graph is not ties.graph:
            where = "is given" if value.is_graph_input() else "comes from outside this control-flow body"
            kind = "the graph input" if value.is_graph_input() else "the value"
            return _first(ties.graph), f"{kind} '{value.name}' {where}"
        inner = next((item for item in producer.inputs if item is not None and item in ties.of), None)
        inner_gauge = None if inner is None else ties.of[inner]
        same = inner_gauge is not None and not (inner_gauge.scale_of if scale else inner_gauge.shift_of).any()
        if not same or producer.op_type not in _PASSING:
            clause = ties.stiff.get(producer, "has no weights that could change what it writes")
            clause = (ties.unscaled if scale else ties.unshifted).get(producer, clause)
            return producer, f"{describe(producer)} {clause}"
        value = inner
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
        inner = next((item for item in producer.inputs if item is not None and item in ties.of), None)
        before = None if inner is None else ties.of[inner]
        same = before is not None and (
            (before.scale_of.size, _distinct(before)) == (gauge.scale_of.size, _distinct(gauge))
        )
        if producer.op_type not in _PASSING - _REPEATING or before is None or not same:
            system = ties.scales if scale else ties.shifts
            whys = [held.stated.why for held in system.held]
            clauses = [why.clause for why in whys if isinstance(why, Tie) and why.node is producer and why.clause]
            what = f"has one {'scale' if scale else 'shift'} for several places where it varies"
            return [f"{describe(ties.parts.get(producer, producer))} {clauses[-1] if clauses else what}"]
        value, gauge = inner, before
    return []


def _distinct(gauge: Gauge) -> int:
    return len(np.unique(np.stack([gauge.scale_of.reshape(-1), gauge.shift_of.reshape(-1)]), axis=1).T)


_PASSING = frozenset({
    "Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Tile", "Expand",
    "Cast", "Dropout", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum",
    "ReduceMax", "ReduceMin", "Resize", "Relu", "LeakyRelu", "PRelu", "Abs", "Clip", "Pad", "Neg", "DepthToSpace",
    "SpaceToDepth",
})  # fmt: skip
"""Operators through which a value that is given is still the same given value."""

_REPEATING = frozenset({"Expand", "Tile"})
"""Those whose result is the same along an axis that their operand does not have."""


def _first(graph: ir.Graph) -> ir.Node | None:
    return next(iter(graph), None)
