"""What hangs together by the values that a plan has computed otherwise: maps, and who takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import onnx_ir as ir

from normdeploy.rewrite.gauge.removal_plan import Plan


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


def owners(maps: Sequence[ir.Node], plan: Plan) -> dict[ir.Node, ir.Node]:
    """Return, for all that changed values connect with some maps, the nearest of them."""
    found = {node: node for node in maps}
    queue = deque(maps)
    while queue:
        node = queue.popleft()
        for other in beside(node, plan):
            if other not in found:
                found[other] = found[node]
                queue.append(other)
    return found


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
    """Return the operators whose weights take a map, nearest first: behind others of them nothing is looked for.

    Neither is it behind another map that disappears, where something takes this one in front of that.
    """
    return _takers(start, plan, plan.gone) or _takers(start, plan, ())


def _takers(start: ir.Node, plan: Plan, walls: Collection[ir.Node]) -> list[ir.Node]:
    absorbing = {edit.node for edit in plan.edits if edit.absorbs}
    seen, queue, found = {start, *walls}, deque([start]), list[ir.Node]()
    while queue:
        node = queue.popleft()
        for other in beside(node, plan):
            if other in seen:
                continue
            seen.add(other)
            if other in absorbing:
                found.append(other)
            else:
                queue.append(other)
    return found
