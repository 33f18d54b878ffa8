"""The search towards the outputs: who behind a value takes an affine map over.

It walks the graph along the rows of :mod:`.table` and visits at most :data:`.naming.MAX_NODES` operators.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import MAX_NODES, describe, readers
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region

if TYPE_CHECKING:
    from normdeploy.rewrite.affine.table import Table


@dataclass
class Forward:
    """Search towards the outputs.

    An operator that joins branches (a sum, a product, a Concat) waits until every branch of the value has brought its
    map there: s x + t in front of both operands of a sum is s (a + b) + 2 t behind it.

    Args:
        table: the rows.
        graph: the graph that is rewritten.
    """

    table: Table
    graph: ir.Graph
    visited: set[ir.Node] = field(default_factory=set)
    _waiting: dict[ir.Node, dict[int, AffineMap]] = field(default_factory=dict)
    _raw: dict[tuple[ir.Node, int], ir.Value] = field(default_factory=dict)

    def plan(self, value: ir.Value, mapping: AffineMap, but: ir.Node | None = None) -> ForwardPlan | Refusal:
        """Plan the whole: what :meth:`through` finds, and every operator in which branches meet."""
        producer = value.producer()
        if producer is not None:
            self.visited.add(producer)  # what is aside of the way may not lead back to where it begins
        found = self.through(value, mapping, but)
        if isinstance(found, Refusal):
            return found
        plans = [found]
        while self._waiting:
            node = self._first_waiting()
            met = self._meet(node, self._waiting.pop(node))
            if isinstance(met, Refusal):
                return met
            plans.append(met)
        return _all_of(plans)

    def through(self, value: ir.Value, mapping: AffineMap, but: ir.Node | None = None) -> ForwardPlan | Refusal:
        """Plan that every reader of ``value`` takes ``mapping`` over, so that a raw value may stand in its place.

        Args:
            value: what is read.
            mapping: the map in front of its readers.
            but: a reader that is looked after elsewhere.
        """
        if value.is_graph_output():
            return Refusal(f"the graph output '{value.name}' is behind it")
        plans: list[ForwardPlan] = []
        for usage in list(value.uses()):
            if usage.node is but:
                continue
            plan = self._reader(usage.node, usage.idx, mapping)
            if isinstance(plan, Refusal):
                return plan
            plans.append(plan)
        return _all_of(plans)

    def _reader(self, node: ir.Node, index: int, mapping: AffineMap) -> ForwardPlan | Refusal:
        """Ask one reader, or let it wait for the other branches that reach it."""
        if node.graph is not self.graph:
            return Refusal(f"{describe(node)} reads it inside a control-flow body", node)
        if node in self._waiting:
            self._waiting[node][index] = mapping
            return self._delivery(node, index)
        if node in self.visited:
            return Refusal(f"{describe(node)} behind it is reached on two ways", node)
        self.visited.add(node)
        if len(self.visited) > MAX_NODES:
            return Refusal(f"more than {MAX_NODES} operators stand between it and the linear operators behind it")
        row = self.table.row(node)
        if row is None or row.forward is None:
            return Refusal(f"{describe(node)} stands {self.next_linear(node)}", node)
        if row.join is not None and sum(constant_tensor(operand) is None for operand in node.inputs) > 1:
            self._waiting[node] = {index: mapping}
            return self._delivery(node, index)
        return row.forward(node, index, mapping, self)

    def aside(self, value: ir.Value, mapping: AffineMap, reader: ir.Node) -> BackwardPlan | None:
        """Plan that another operand of ``reader`` carries a map; None where it cannot.

        What this search passed through is out of its reach; who uses the plan puts what it changes out of this one's.
        """
        found = Backward(self.table, self.graph, entered=set(self.visited)).plan(value, mapping, reader)
        return None if isinstance(found, Refusal) else found

    def attempt(self) -> tuple[set[ir.Node], dict[ir.Node, dict[int, AffineMap]]]:
        """Return what to hand to :meth:`give_up` if the alternative tried next comes to nothing."""
        return set(self.visited), {node: dict(arrived) for node, arrived in self._waiting.items()}

    def give_up(self, before: tuple[set[ir.Node], dict[ir.Node, dict[int, AffineMap]]]) -> None:
        """Forget the operators that a refused alternative reached, so that the next one may."""
        self.visited, self._waiting = before

    def _delivery(self, node: ir.Node, index: int) -> ForwardPlan:
        """Plan that input ``index`` of a waiting operator is handed the raw value."""

        def build(region: Region, raw: ir.Value) -> None:
            del region
            self._raw[node, index] = raw

        return ForwardPlan(build)

    def _meet(self, node: ir.Node, arrived: dict[int, AffineMap]) -> ForwardPlan | Refusal:
        """Plan an operator whose inputs ``arrived`` carry a map each; the build finds the raw values delivered."""
        row = self.table.row(node)
        assert row is not None
        assert row.forward is not None
        assert row.join is not None
        if len(arrived) == 1:
            ((index, mapping),) = arrived.items()
            alone = row.forward(node, index, mapping, self)
            if isinstance(alone, Refusal):
                return alone
            plan = alone
            return ForwardPlan(
                lambda region, _raw: plan.build(region, self._raw[node, index]), plan.old, plan.into, plan.cost
            )
        moved = row.join(node, arrived)
        if isinstance(moved, Refusal):
            return moved
        behind = self.through(node.outputs[0], moved)
        if isinstance(behind, Refusal):
            return behind
        onward = behind

        def build(region: Region, raw: ir.Value) -> None:
            del raw
            inputs = [self._raw.get((node, at), operand) for at, operand in enumerate(node.inputs)]
            onward.build(region, region.replace(node, inputs).outputs[0])

        return ForwardPlan(build, (node, *onward.old), onward.into, onward.cost)

    def _first_waiting(self) -> ir.Node:
        """Return a waiting operator that no other waiting one leads to."""
        waiting = list(self._waiting)
        for node in waiting:
            if not any(_leads_to(other, node) for other in waiting if other is not node):
                return node
        return waiting[0]

    def next_linear(self, node: ir.Node) -> str:
        """Say what stands behind ``node``: "between it and the next Conv 'layer2.0.conv1'"."""
        for _ in range(8):
            if self.table.is_linear(node):
                return f"between it and the next {describe(node)}"
            following = [reader for output in node.outputs for reader in readers(output)]
            if not following:
                break
            linear = [reader for reader in following if self.table.is_linear(reader)]
            node = linear[0] if linear else following[0]
        return "behind it"


def _all_of(plans: list[ForwardPlan]) -> ForwardPlan:
    """Return several plans as one."""
    if len(plans) == 1:
        return plans[0]

    def build(region: Region, raw: ir.Value) -> None:
        for plan in plans:
            plan.build(region, raw)

    return ForwardPlan(
        build,
        tuple(node for plan in plans for node in plan.old),
        tuple(node for plan in plans for node in plan.into),
        sum(plan.cost for plan in plans),
    )


def _leads_to(start: ir.Node, end: ir.Node) -> bool:
    """Tell whether ``end`` depends on ``start``, as far as :data:`MAX_NODES` operators show."""
    queue, seen = deque([start]), {start}
    while queue and len(seen) <= MAX_NODES:
        for output in queue.popleft().outputs:
            for usage in output.uses():
                if usage.node is end:
                    return True
                if usage.node not in seen:
                    seen.add(usage.node)
                    queue.append(usage.node)
    return False
