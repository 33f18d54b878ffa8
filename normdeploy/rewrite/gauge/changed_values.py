"""What hangs together by the values that a plan has computed otherwise: maps, and who takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

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


def _ways(
    starts: Sequence[ir.Node], plan: Plan, ends: Collection[ir.Node] = (), walls: Collection[ir.Node] = ()
) -> Iterator[tuple[ir.Node, ir.Node, int]]:
    """Yield all that changed values connect with some operators, nearest first, with the nearest of these and how far.

    Args:
        starts: the operators.
        plan: says which values change.
        ends: behind these nothing is looked for. walls: these are not looked at.
    """
    seen, queue = {*starts, *walls}, deque((start, start, 0) for start in starts)
    while queue:
        node, origin, far = queue.popleft()
        yield node, origin, far
        for other in beside(node, plan) if not far or node not in ends else ():
            if other not in seen:
                seen.add(other)
                queue.append((other, origin, far + 1))


def component(start: ir.Node, plan: Plan) -> tuple[list[ir.Node], set[ir.Node]]:
    """Return the maps and the absorbing operators that changed values connect with one."""
    seen = {node for node, _, _ in _ways([start], plan)}
    return [node for node in plan.gone if node in seen], seen & {edit.node for edit in plan.edits}


def owners(maps: Sequence[ir.Node], plan: Plan) -> dict[ir.Node, ir.Node]:
    """Return, for all that changed values connect with some maps, the nearest of them."""
    return {node: origin for node, origin, _ in _ways(maps, plan)}


def nearest_maps(start: ir.Node, plan: Plan, among: Collection[ir.Node] | None = None) -> list[ir.Node]:
    """Return the disappearing maps nearest to an operator, along changed values.

    Args:
        start: the operator. plan: says which values change, and what disappears. among: which of it, by default any.
    """
    gone = {*plan.gone, *plan.halves}
    gone = gone if among is None else gone.intersection(among)
    found = [(far, node) for node, _, far in _ways([start], plan, ends=gone) if node in gone]
    return [node for far, node in found if far == found[0][0]]


def takers_of(start: ir.Node, plan: Plan) -> list[ir.Node]:
    """Return the operators whose weights take a map, nearest first: behind others of them nothing is looked for.

    Neither is it behind another map that disappears, where something takes this one in front of that.
    """
    absorbing = {edit.node for edit in plan.edits if edit.absorbs}
    for walls in (plan.gone, ()):
        found = [node for node, _, far in _ways([start], plan, absorbing, walls) if far and node in absorbing]
        if found:
            return found
    return []
