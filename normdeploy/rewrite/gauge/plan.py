"""What becomes of the maps of a graph: which disappear, why the others stay, and what lies between them.

The maps are asked in the order of what they cost to stay, the widest pass first, each as one transaction: it holds, or
everything is as before. Source: the order is Kruskal's (On the shortest spanning subtree of a graph, 1956): what stays
would close a cycle that is not neutral.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.node import affine_map, is_affine
from normdeploy.rewrite.affine.offset import is_centred, is_far
from normdeploy.rewrite.gauge.build import build
from normdeploy.rewrite.gauge.choose import choose
from normdeploy.rewrite.gauge.edit import Edit, Solution
from normdeploy.rewrite.gauge.gauge import Ties
from normdeploy.rewrite.gauge.reasons import Reason, reason_of_conflict
from normdeploy.rewrite.gauge.rules.maps import dissolve


@dataclass
class Plan:
    """What becomes of the maps of a graph.

    Args:
        solution: the gauges.
        gone: the maps that disappear. halves: what of a map that stays disappears: "scale" or "shift".
        stays: why the others stay.
        edits: the changed operators.
    """

    solution: Solution
    gone: list[ir.Node]
    halves: dict[ir.Node, str]
    stays: dict[ir.Node, Reason]
    edits: list[Edit] = field(default_factory=list)


def solve(
    graph: ir.Graph,
    stays: dict[ir.Node, Reason],
    opaque: set[ir.Node],
    pads: Mapping[ir.Node, str],
    whole: set[ir.Node],
) -> Plan:
    """Ask every map that does not have to stay already."""
    ties = build(graph, opaque, [node for node in stays if is_centred(node)], pads)
    maps = [node for node in graph if is_affine(node) and node.outputs[0] in ties.of and node.inputs[0] in ties.of]
    kept = dict(stays)
    for node in graph:
        if is_affine(node) and node not in maps:
            kept[node] = Reason("the rank of its input is not known")
    gone: list[ir.Node] = []
    halves: dict[ir.Node, str] = {}
    for node in sorted(maps, key=lambda node: -cost.pass_bytes(node.outputs[0])):
        if node not in kept:
            _begin(ties)
            conflict = dissolve(node, ties)
            if conflict is None:
                _commit(ties)
                gone.append(node)
                continue
            kept[node] = reason_of_conflict(node, conflict, ties)
            _rollback(ties)
        half = "" if node in whole else _half(node, ties)
        if half:
            halves[node] = half
    return Plan(choose(ties), gone, halves, kept)


def _half(node: ir.Node, ties: Ties) -> str:
    """Try one half of a map that costs two passes as it is; return which half goes."""
    mapping = affine_map(node)
    if is_centred(node) or mapping.no_scale or mapping.no_shift or (mapping.rank > 1 and mapping.axes <= {1}):
        return ""
    for name in ("scale",) if is_far(node) else ("scale", "shift"):
        _begin(ties)
        if dissolve(node, ties, scale=name == "scale", shift=name == "shift") is None:
            _commit(ties)
            return name
        _rollback(ties)
    return ""


def _begin(ties: Ties) -> None:
    ties.scales.begin()
    ties.shifts.begin()


def _commit(ties: Ties) -> None:
    ties.scales.commit()
    ties.shifts.commit()


def _rollback(ties: Ties) -> None:
    ties.scales.rollback()
    ties.shifts.rollback()


def saved(plan: Plan) -> float:
    """Return the bytes of the passes that disappear."""
    return sum(cost.pass_bytes(node.outputs[0]) for node in plan.gone)


def _carried(value: ir.Value | None, plan: Plan) -> bool:
    """Tell whether a value is computed otherwise."""
    if value is None:
        return False
    gauge = plan.solution.ties.of.get(value)
    return gauge is not None and not plan.solution.is_identity(gauge)


def beside(node: ir.Node, plan: Plan) -> list[ir.Node]:
    """Return the operators that share a changed value with this one."""
    found: list[ir.Node] = []
    for value in (*node.inputs, *node.outputs):
        if value is not None and _carried(value, plan):
            producer = value.producer()
            found += [] if producer is None else [producer]
            found += [usage.node for usage in value.uses()]
    parts = plan.solution.ties.parts
    found += plan.solution.parts.get(node, [])
    found += [parts[node]] if node in parts else []
    return [other for other in dict.fromkeys(found) if other is not node]


def component(start: ir.Node, plan: Plan) -> tuple[list[ir.Node], set[ir.Node]]:
    """Return the maps and the absorbing operators that changed values connect with one."""
    gone, edits = set(plan.gone), {edit.node for edit in plan.edits}
    seen, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        for other in beside(node, plan):
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return [node for node in plan.gone if node in seen & gone], seen & edits


def nearest_maps(start: ir.Node, plan: Plan) -> list[ir.Node]:
    """Return the disappearing maps nearest to an operator, along changed values."""
    gone = set(plan.gone) | set(plan.halves)
    seen, ring = {start}, [start]
    while ring:
        found = [node for node in ring if node in gone]
        if found:
            return found
        ring = [other for node in ring for other in beside(node, plan)]
        ring = [node for node in dict.fromkeys(ring) if node not in seen]
        seen.update(ring)
    return []


def takers_of(start: ir.Node, plan: Plan) -> list[ir.Node]:
    """Return the operators whose weights take a map, nearest first: behind others of them nothing is looked for."""
    absorbing = {edit.node for edit in plan.edits if edit.absorbs}
    gone = set(plan.gone)
    seen, queue, found = {start}, deque([start]), list[ir.Node]()
    while queue:
        node = queue.popleft()
        for other in beside(node, plan):
            if other in seen:
                continue
            seen.add(other)
            if other in absorbing:
                found.append(other)
            elif other not in gone:
                queue.append(other)
    return found
