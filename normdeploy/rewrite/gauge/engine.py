"""Remove every affine map whose ties can be met: build the ties, ask map after map, write the constants, check each.

1. Every operator states its ties (:mod:`.build`).
2. The maps are asked in the order of what they cost to stay, each as one transaction: s_y = a s_x and t_y = a t_x + b
   are stated, and taken back where they contradict what holds. What stays closes a contradiction, whatever was asked
   first; its reason is that contradiction (:mod:`.reasons`).
3. Unknowns that are still free are chosen (:mod:`.choose`), and every operator says what it becomes. One that cannot be
   written so (its weights would overflow), or a map that would cost more than it saves, makes the maps it belongs to
   stay, and the ties are solved again.
4. Each operator is checked alone, before and after, in float64 (:mod:`.check`); then the graph changes.

Source: REPARAMETERIZATION in docs/design.md; the order is Kruskal's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from normdeploy.errors import RewriteError
from normdeploy.graph import module_path
from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.node import (
    adopt_origins,
    affine_map,
    free_name,
    is_affine,
    origins_of,
    set_reason,
    set_taken,
    settle,
    share_names,
    taken_by,
)
from normdeploy.rewrite.affine.offset import is_centred, is_far
from normdeploy.rewrite.affine.region import drop_if_unread
from normdeploy.rewrite.context import RewriteContext
from normdeploy.rewrite.gauge.build import build
from normdeploy.rewrite.gauge.check import Check, Unchecked
from normdeploy.rewrite.gauge.choose import choose
from normdeploy.rewrite.gauge.edit import Edit, Refused, Solution
from normdeploy.rewrite.gauge.gauge import Ties
from normdeploy.rewrite.gauge.limits import bounds, divided_by_zero
from normdeploy.rewrite.gauge.reasons import Reason, reason_of_conflict
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.maps import dissolve

_TOO_DEAR = "absorbing it would copy or compute more than the pass over its tensor that it saves"


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


class MoveAffine(ir.passes.InPlacePass):
    """Absorb Affine nodes into the operators around them.

    Args:
        context: ledger and check.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__()
        self.context = context

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Remove what can be removed, in every graph of the model."""
        modified = False
        share_names(model)
        for graph in model.graphs():
            if any(is_affine(node) for node in graph):
                graph.sort()
                modified |= self._graph(graph)
        return ir.passes.PassResult(model, modified)

    def _graph(self, graph: ir.Graph) -> bool:
        plan, checks = self._settled(graph)
        for node, reason in plan.stays.items():
            set_reason(node, str(reason))
        if not plan.gone and not plan.halves:
            return False
        takers = {node: _takers(node, plan) for node in (*plan.gone, *plan.halves)}
        paths = {taker: module_path(taker) for found in takers.values() for taker in found}  # as the user names them
        for edit in plan.edits:
            edit.apply()
        for edit, check in checks:
            check.verify(self.context, edit)
        self._remove(graph, plan, takers, paths)
        for edit in plan.edits:
            edit.tidy()
        for node, half in plan.halves.items():
            set_taken(node, half, dict.fromkeys(paths[taker] for taker in takers[node]))
        return True

    def _settled(self, graph: ir.Graph) -> tuple[Plan, list[tuple[Edit, Check]]]:
        """Solve; where a Pad was in the way, try whether another of the gauges that pass it goes further."""
        best = self._consistent(graph, {})
        in_the_way = {other for reason in best[0].stays.values() for other in reason.nodes}
        pads = [node for node in in_the_way if node.op_type == "Pad"]
        for mode in ("uniform", "loose") if pads else ():
            other = self._consistent(graph, dict.fromkeys(pads, mode))
            if _saved(other[0]) > _saved(best[0]):
                best = other
        return best

    def _consistent(self, graph: ir.Graph, pads: Mapping[ir.Node, str]) -> tuple[Plan, list[tuple[Edit, Check]]]:
        """Solve until every operator can be written and checked and nothing costs more than it saves."""
        stays: dict[ir.Node, Reason] = {}
        whole: set[ir.Node] = set()
        opaque: set[ir.Node] = set()
        while True:
            plan = _solve(graph, stays, opaque, pads, whole)
            problem = _written(plan)
            if problem is None:
                problem = _dear(plan) or _decentred(plan, stays) or _narrowed(plan)
            if problem is not None:
                whole |= {node for node in problem if node in stays or node in plan.halves}
                stays |= problem
                continue
            checks: list[tuple[Edit, Check]] = []
            unchecked: set[ir.Node] = set()
            for edit in plan.edits:
                try:
                    checks.append((edit, Check(self.context, edit)))
                except Unchecked as error:
                    unchecked.add(error.node)
            if unchecked:
                opaque |= unchecked
                continue
            return plan, checks

    def _remove(
        self, graph: ir.Graph, plan: Plan, takers: dict[ir.Node, list[ir.Node]], paths: dict[ir.Node, str]
    ) -> None:
        """Take the maps out that do nothing any more; values that are not what they were get names of their own."""
        ties, solution = plan.solution.ties, plan.solution
        for value, gauge in ties.of.items():
            if value.name and not value.is_graph_input() and not solution.is_identity(gauge):
                value.name = free_name(graph, f"{value.name}.carried")
        for node in plan.gone:
            source, result = node.inputs[0], node.outputs[0]
            assert source is not None
            named = result.name if solution.is_identity(ties.of.get(result)) else None
            self._settle(node, takers[node], paths)
            result.replace_all_uses_with(source, replace_graph_outputs=True)
            constants = list(node.inputs[1:])
            graph.remove(node, safe=True)
            for value in constants:
                if value is not None:
                    drop_if_unread(value)
            if named is not None and not source.is_graph_input() and not source.is_initializer():
                result.name = None
                source.name = named

    def _settle(self, node: ir.Node, takers: list[ir.Node], paths: dict[ir.Node, str]) -> None:
        maps = [taker for taker in takers if is_affine(taker)]
        if maps and len(maps) == len(takers):
            adopt_origins(maps[0], origins_of(node))
            return
        names = list(dict.fromkeys([*taken_by(node), *(paths[taker] for taker in takers)]))
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        settle(self.context.ledger, node, "folded", shown, "" if shown else "what it does is undone behind it")


_NAMED = 6
"""Takers named in a ledger row."""


def _solve(
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


def _written(plan: Plan) -> dict[ir.Node, Reason] | None:
    """Let every operator say what it becomes; return the maps that have to stay where one cannot."""
    solution = plan.solution
    gone = set(plan.gone)
    problems = {node: Reason(text) for node, text in bounds(plan.gone, solution).items()}
    for node in divided_by_zero([*plan.gone, *plan.halves], solution):
        problems[node] = plan.stays.get(node, Reason("what behind it reads its channels of scale 0 would divide by it"))
    if problems:
        return problems
    for node in solution.ties.graph:
        rule = rule_of(node)
        if rule is None or node in gone or node in solution.ties.parts or not solution.touches(node):
            continue
        edit = Edit(node, solution)
        try:
            rule.write(edit)
        except Refused as refusal:
            nearest = _nearest_maps(refusal.node, plan)
            if not nearest:
                raise RewriteError(f"gauge of {node.op_type}", module_path(node), refusal.reason) from refusal
            problems |= {found: Reason(refusal.reason) for found in nearest}
        else:
            plan.edits.append(edit)
    solution.settle_copies()
    return problems or None


def _dear(plan: Plan) -> dict[ir.Node, Reason] | None:
    """Return the maps that have to stay because what takes them costs more than they do."""
    costs = {edit.node: edit.cost for edit in plan.edits if edit.cost > 0}
    seen: set[ir.Node] = set()
    found: dict[ir.Node, Reason] = {}
    for start in costs:
        if start in seen:
            continue
        maps, absorbers = _component(start, plan)
        seen |= absorbers
        saved = sum(cost.pass_bytes(node.outputs[0]) for node in maps)
        if maps and sum(costs.get(node, 0.0) for node in absorbers) >= saved:
            smallest = min(maps, key=lambda node: cost.pass_bytes(node.outputs[0]))
            found[smallest] = Reason(_TOO_DEAR)
    return found or None


def _saved(plan: Plan) -> float:
    """Return the bytes of the passes that disappear."""
    return sum(cost.pass_bytes(node.outputs[0]) for node in plan.gone)


def _narrowed(plan: Plan) -> dict[ir.Node, Reason] | None:
    """Return the maps that have to stay because what would take them, beyond a Cast, holds fewer digits."""
    ties = plan.solution.ties
    if not any(node.op_type == "Cast" and node.outputs[0] in ties.of for node in ties.graph):
        return None
    found: dict[ir.Node, Reason] = {}
    for node in plan.gone:
        ours = _DIGITS.get(node.outputs[0].dtype or ir.DataType.FLOAT, (24, 8))
        for taker in _takers(node, plan):
            theirs = _DIGITS.get(taker.outputs[0].dtype or ir.DataType.FLOAT, (24, 8))
            if theirs[0] < ours[0] or theirs[1] < ours[1]:
                found[node] = Reason(
                    f"the other side of a Cast, where {describe(taker)} would take it, holds fewer digits"
                )
    return found or None


_DIGITS = {
    ir.DataType.BFLOAT16: (8, 8),
    ir.DataType.FLOAT16: (11, 5),
    ir.DataType.FLOAT: (24, 8),
    ir.DataType.DOUBLE: (53, 11),
}
"""Bits of mantissa and exponent."""


def _decentred(plan: Plan, stays: dict[ir.Node, Reason]) -> dict[ir.Node, Reason] | None:
    """Return the maps that stay, and stay as written: (x - m) / sigma of values far from zero is exact in two steps."""
    changed = [edit.node for edit in plan.edits if is_affine(edit.node) and edit.absorbs and is_centred(edit.node)]
    return {node: plan.stays[node] for node in changed if node not in stays} or None


def _carried(value: ir.Value | None, plan: Plan) -> bool:
    """Tell whether a value is computed otherwise."""
    if value is None:
        return False
    gauge = plan.solution.ties.of.get(value)
    return gauge is not None and not plan.solution.is_identity(gauge)


def _beside(node: ir.Node, plan: Plan) -> list[ir.Node]:
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


def _component(start: ir.Node, plan: Plan) -> tuple[list[ir.Node], set[ir.Node]]:
    """Return the maps and the absorbing operators that changed values connect with one."""
    gone, edits = set(plan.gone), {edit.node for edit in plan.edits}
    seen, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        for other in _beside(node, plan):
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return [node for node in plan.gone if node in seen & gone], seen & edits


def _nearest_maps(start: ir.Node, plan: Plan) -> list[ir.Node]:
    """Return the disappearing maps nearest to an operator, along changed values."""
    gone = set(plan.gone) | set(plan.halves)
    seen, ring = {start}, [start]
    while ring:
        found = [node for node in ring if node in gone]
        if found:
            return found
        ring = [other for node in ring for other in _beside(node, plan)]
        ring = [node for node in dict.fromkeys(ring) if node not in seen]
        seen.update(ring)
    return []


def _takers(start: ir.Node, plan: Plan) -> list[ir.Node]:
    """Return the operators whose weights take a map, nearest first: behind others of them nothing is looked for."""
    absorbing = {edit.node for edit in plan.edits if edit.absorbs}
    gone = set(plan.gone)
    seen, queue, found = {start}, deque([start]), list[ir.Node]()
    while queue:
        node = queue.popleft()
        for other in _beside(node, plan):
            if other in seen:
                continue
            seen.add(other)
            if other in absorbing:
                found.append(other)
            elif other not in gone:
                queue.append(other)
    return found
