"""Every operator of a contradiction: who states its equations, and who passes on what they are about."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.operator_names import describe, readers
from normdeploy.rewrite.gauge.ties import Tie, Ties


@dataclass(frozen=True)
class Limit:
    """A restriction.

    Args:
        node: who restricts; None for the graph.
        text: who, and what is asked.
        way: who passes what is restricted on to where it matters.
        given: a value from outside restricts, and ``node`` tells its place alone.
    """

    node: ir.Node | None
    text: str
    way: tuple[ir.Node, ...] = ()
    given: bool = False


def chain_of(
    node: ir.Node, proof: Sequence[Tie], limits: Sequence[Limit], passing: Sequence[ir.Node], ties: Ties
) -> tuple[str, ...]:
    """Return who takes part in a contradiction: who states its equations, and who passes on what they are about."""
    order = ties.order
    named: dict[str, int] = {}

    def name(text: str, place: int) -> None:  # several operators may be told by one name: the first tells the place
        named[text] = min(place, named.get(text, place))

    restricting = {limit.node for limit in limits if not limit.given}
    for tie in proof:
        if tie.node is not None and not tie.clause and tie.node in restricting:
            continue  # named below, with what it asks
        if tie.node is not None:
            name(f"{describe(tie.node)} {tie.clause}".strip(), order.get(tie.node, len(order)))
        else:
            name(f"{tie.subject} {tie.clause}", len(order))
    for limit in limits:
        name(limit.text, -1 if limit.node is None or limit.given else order.get(limit.node, -1))
    stating = {tie.node for tie in proof if tie.node is not None}
    told = {node, *stating, *(limit.node for limit in limits)}
    for other in (*passing, *(other for limit in limits for other in limit.way)):
        if other not in told:
            name(describe(other), order.get(other, len(order)))
    return tuple(sorted(named, key=lambda text: named[text]))


def between(
    start: ir.Node, goals: Collection[ir.Node], unknowns: frozenset[int], ties: Ties, *, scale: bool
) -> list[ir.Node]:
    """Return the operators on the shortest ways from a map to others, along values whose gauge is in question."""
    asked = np.zeros((ties.scales if scale else ties.shifts).size, bool)
    asked[list(unknowns - {0})] = True
    came_from: dict[ir.Node, ir.Node] = {start: start}
    queue, seen, left = deque([start]), set[ir.Value | None](), set(goals) - {start}
    while queue and left:
        node = queue.popleft()
        for value in (*node.inputs, *node.outputs):
            if value in seen:
                continue
            seen.add(value)
            gauge = None if value is None else ties.of.get(value)
            if value is None or gauge is None or not asked[gauge.scale_of if scale else gauge.shift_of].any():
                continue
            producer = value.producer()
            for other in (*readers(value), *(() if producer is None else (producer,))):
                if other not in came_from:
                    came_from[other] = node
                    left.discard(other)
                    queue.append(other)
    found: dict[ir.Node, None] = {}
    for goal in goals:
        node = came_from.get(goal, start)
        while node is not start:
            found[node] = None
            node = came_from[node]
    return list(found)
