"""Why a map has to stay: the equations whose sum is the contradiction.

The equations that hold are independent of each other, so the ones that contradict a new one, and with which factors,
are determined: the proof of a map that stays is unique. It is a cycle of ties (what lies in front of the map and what
lies behind it meet again, with another factor), or a chain from one restriction to another; the sentence names the
restrictions, the chain every operator between them.

Source: R. Nieuwenhuis and A. Oliveras, Proof-producing congruence closure, 2005, for the form of the question.
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
from normdeploy.rewrite.gauge.rows import Equation, Floats
from normdeploy.rewrite.gauge.system import Conflict, System

_LONGEST = 600
"""Equations that are looked through for a proof."""

_SIGNED = 256
"""Cells that are asked which of them needs a sign."""

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
    proof = [tie for tie in _proof(conflict) if tie.node is not node]
    order = {other: index for index, other in enumerate(ties.graph)}
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
    restricting = tuple(tie.node for tie in proof if tie.node is not None and tie.clause)
    return Reason(f"{cause}: {' and '.join(parts)}{way}", tuple(_chain(proof, limits, order)), restricting)


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


def _proof(conflict: Conflict) -> list[Tie]:
    """Return who stated the equations that contradict each other."""
    rows, share = _derivation(conflict.system, conflict.equation, conflict.row)
    stated = [conflict.equation, *_used(rows, share)]
    if conflict.sign:
        stated += _signers(conflict, rows, share)
    return list(dict.fromkeys(equation.why for equation in stated if isinstance(equation.why, Tie)))


_Held = tuple[int, Equation, int]
"""An unknown, the equation that determines it, and the row of that equation."""


def _derivation(system: System, equation: Equation, row: int) -> tuple[list[_Held], Floats]:
    """Return the equations from which a row follows (or is contradicted), with their factors."""
    rows = _closure(system, equation, row)
    pivots = {unknown: at for at, (unknown, _, _) in enumerate(rows)}
    matrix, target = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    for at, (_, held, place) in enumerate(rows):
        for unknown, coefficient in zip(*_terms(held, place), strict=True):
            if unknown in pivots:
                matrix[pivots[unknown], at] += coefficient
    for unknown, coefficient in zip(*_terms(equation, row), strict=True):
        if unknown in pivots:
            target[pivots[unknown]] -= coefficient
    factors: Floats = np.asarray(np.linalg.lstsq(matrix, target, rcond=None)[0]) if len(rows) else np.zeros(0)
    return rows, factors


def _used(rows: list[_Held], share: Floats) -> list[Equation]:
    return [equation for weight, (_, equation, _) in zip(share, rows, strict=True) if abs(weight) > 1e-9]


def _closure(system: System, equation: Equation, row: int) -> list[_Held]:
    """Return the equations that determine what is in a row."""
    seen: set[int] = set()
    found: list[_Held] = []
    queue = deque(int(unknown) for unknown in _terms(equation, row)[0])
    while queue and len(found) < _LONGEST:
        unknown = queue.popleft()
        if unknown in seen or unknown == 0:
            continue
        seen.add(unknown)
        holder = system.holder(unknown)
        if holder is None or holder == (equation, row):
            continue  # free, or held by the very equation that is asked about
        found.append((unknown, *holder))
        queue.extend(int(other) for other in _terms(*holder)[0])
    return found


def _signers(conflict: Conflict, rows: list[_Held], share: Floats) -> list[Equation]:
    """Return who required the signs of the unknowns that are left of a row, and what ties them to these unknowns."""
    system = conflict.system
    left: dict[int, float] = {}
    weighted = [(1.0, conflict.equation, conflict.row)]
    weighted += [(weight, equation, row) for weight, (_, equation, row) in zip(share, rows, strict=True)]
    for weight, equation, row in weighted:
        for unknown, coefficient in zip(*_terms(equation, row), strict=True):
            left[int(unknown)] = left.get(int(unknown), 0.0) + weight * coefficient
    found: list[Equation] = []
    for unknown in [unknown for unknown, weight in left.items() if abs(weight) > 1e-9 and unknown != 0]:
        signer = system.signer(unknown)
        if signer is None:
            continue
        found.append(signer)
        for row in range(min(len(signer.rows), _SIGNED)):
            held, factors = _derivation(system, signer, row)
            met = [int(other) for _, equation, place in held for other in _terms(equation, place)[0]]
            if unknown in met or unknown in _terms(signer, row)[0]:
                found += _used(held, factors)
                break
    return found


def _terms(equation: Equation, row: int) -> tuple[np.ndarray, np.ndarray]:
    used = (equation.rows.coefficients[row] != 0) & (equation.rows.unknowns[row] != 0)
    return equation.rows.unknowns[row][used], equation.rows.coefficients[row][used]


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
