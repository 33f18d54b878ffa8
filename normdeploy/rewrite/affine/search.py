"""The two searches: who in front of a value, or who behind it, takes an affine map over.

Both walk the graph along the rows of :mod:`.table`; both visit at most :data:`MAX_NODES` operators, so that the work
for one map is bounded and the whole pass linear in the number of nodes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_ir as ir

from normdeploy.graph import constant_tensor, module_path
from normdeploy.rewrite.affine import constant
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.node import origins_of
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region, reads_shape_only

if TYPE_CHECKING:
    from normdeploy.rewrite.affine.table import Table

MAX_NODES = 128
"""Operators visited on behalf of one map."""


def describe(node: ir.Node) -> str:
    """Return how a sentence names an operator: its type, and where it stands in the user's model."""
    where, origins = module_path(node), origins_of(node)
    what = origins[0].kind if origins else node.op_type  # an Affine is called what its author wrote
    return f"{what} '{where}'" if where else what


def readers(value: ir.Value, but: ir.Node | None = None) -> list[ir.Node]:
    """Return the nodes that read what ``value`` holds (not its shape only), each once, without ``but``."""
    users = dict.fromkeys(usage.node for usage in value.uses())
    return [node for node in users if node is not but and not reads_shape_only(node)]


@dataclass(frozen=True)
class Demand:
    """One map that several operators of one plan want of one value.

    Args:
        mapping: the map, the same for all.
        readers: who wants it so far.
    """

    mapping: AffineMap
    readers: frozenset[ir.Node]


@dataclass
class Backward:
    """Search towards the inputs.

    Args:
        table: the rows.
        graph: the graph that is rewritten; values of outer graphs are out of reach.
        joint: let a value with several readers be demanded by all of them: s (pool(x) - x) is pool(s x) - s x.
        offset: let a value with several readers take a shift that one of them wants, where the others take it off
            again: conv(x + t) + x is conv(y) + (y - t). Done once per plan.
    """

    table: Table
    graph: ir.Graph
    joint: bool = False
    offset: bool = False
    visited: int = 0
    met_shared: bool = False
    entered: set[ir.Node] = field(default_factory=set)
    demands: dict[ir.Value, Demand] = field(default_factory=dict)
    _granted: dict[ir.Value, BackwardPlan] = field(default_factory=dict)
    _built: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def plan(self, value: ir.Value, mapping: AffineMap, reader: ir.Node) -> BackwardPlan | Refusal:
        """Plan the whole: what :meth:`into` finds, and every demand that it leaves open."""
        self.entered.add(reader)
        found = self.into(value, mapping, reader)
        if isinstance(found, Refusal):
            return found
        while open_demands := [value for value in self.demands if value not in self._granted]:
            complete = [value for value in open_demands if set(readers(value)) == self.demands[value].readers]
            if not complete:
                return Refusal(f"'{open_demands[0].name}' in front of it is read by others too")
            granted = self.enter(complete[0], self.demands[complete[0]].mapping)
            if isinstance(granted, Refusal):
                return granted
            self._granted[complete[0]] = granted
        parts = [*reversed(self._granted.values()), found]
        return BackwardPlan(
            found.build,
            tuple(old for part in parts for old in part.old),
            tuple(taken for part in parts for taken in part.into),
            sum(part.cost for part in parts),
        )

    def attempt(self) -> tuple[set[ir.Node], dict[ir.Value, Demand]]:
        """Return what to hand to :meth:`give_up` if the alternative tried next comes to nothing."""
        return set(self.entered), dict(self.demands)

    def give_up(self, before: tuple[set[ir.Node], dict[ir.Value, Demand]]) -> None:
        """Forget the operators that a refused alternative entered, so that the next one may."""
        self.entered, self.demands = before

    def into(self, value: ir.Value, mapping: AffineMap, reader: ir.Node) -> BackwardPlan | Refusal:
        """Plan a value that carries ``mapping`` of ``value``, which ``reader`` reads (once) instead.

        Returns:
            the plan, or the refusal of the first operator that could not take the map.
        """
        if mapping.no_scale and mapping.no_shift:
            return BackwardPlan(lambda _region: value)
        if constant_tensor(value) is not None:
            return constant.absorb(value, mapping, reader)
        if self.joint and self.unreachable(value) is None and readers(value, reader):
            return self._demand(value, mapping, reader)
        blocked = self.blocked(value, reader)
        if blocked is None:
            return self.enter(value, mapping)
        once = sum(usage.node is reader for usage in value.uses()) == 1
        if self.offset and mapping.no_scale and once and self.unreachable(value) is None:
            return self._offset(value, mapping, reader)
        return blocked

    def _offset(self, value: ir.Value, mapping: AffineMap, reader: ir.Node) -> BackwardPlan | Refusal:
        """Plan that the producer of a shared value takes a shift, and its other readers the opposite one."""
        self.offset = False
        found = self.enter(value, mapping)
        if isinstance(found, Refusal):
            return found
        others = Forward(self.table, self.graph, visited={*self.entered, *found.old, reader})
        rest = others.plan(value, mapping.with_shift(-mapping.shift), but=reader)
        if isinstance(rest, Refusal):
            return rest
        self.entered.update(rest.old)
        producer, onward = found, rest
        taker = producer.into or producer.old[:1]  # a constant that takes it has no name: the sum that reads it has

        def build(region: Region) -> ir.Value:
            shifted = producer.build(region)
            onward.build(region, shifted)
            return shifted

        return BackwardPlan(build, (*producer.old, *onward.old), (*taker, *onward.into), producer.cost + onward.cost)

    def _demand(self, value: ir.Value, mapping: AffineMap, reader: ir.Node) -> BackwardPlan | Refusal:
        """Note that ``reader`` wants the map; :meth:`plan` asks the producer once every reader does."""
        if sum(usage.node is reader for usage in value.uses()) > 1:
            return Refusal(f"{describe(reader)} reads '{value.name}' twice", reader)
        earlier = self.demands.get(value)
        if earlier is not None and not earlier.mapping.same(mapping):
            return Refusal(f"the readers of '{value.name}' in front of it want different maps", reader)
        wanted = frozenset() if earlier is None else earlier.readers
        self.demands[value] = Demand(mapping, wanted | {reader})

        def build(region: Region) -> ir.Value:
            if value not in self._built:
                self._built[value] = self._granted[value].build(region)
            return self._built[value]

        return BackwardPlan(build)

    def blocked(self, value: ir.Value, reader: ir.Node) -> Refusal | None:
        """Return why the producer of ``value`` may not be touched on behalf of ``reader`` alone, or None."""
        unreachable = self.unreachable(value)
        if unreachable is not None:
            return unreachable
        producer = value.producer()
        assert producer is not None
        others = readers(value, reader)
        if others:
            self.met_shared = True
            count = "another node" if len(others) == 1 else f"{len(others)} other nodes"
            return Refusal(
                f"the result of {describe(producer)} in front of it is also read by {count} "
                f"({', '.join(describe(node) for node in others[:3])}{', ...' if len(others) > 3 else ''})",
                producer,
            )
        if sum(usage.node is reader for usage in value.uses()) > 1:
            return Refusal(f"{describe(reader)} reads the result of {describe(producer)} twice", producer)
        return None

    def unreachable(self, value: ir.Value) -> Refusal | None:
        """Return why no producer of ``value`` can be rewritten at all, or None."""
        if value.is_graph_input() or value.is_initializer():
            return Refusal(f"the graph input '{value.name}' is in front of it")
        producer = value.producer()
        if producer is None or producer.graph is not self.graph:
            return Refusal(f"'{value.name}' comes from outside this control-flow body")
        if value.is_graph_output():
            return Refusal(f"the result of {describe(producer)} in front of it is the graph output '{value.name}'")
        return None

    def enter(self, value: ir.Value, mapping: AffineMap) -> BackwardPlan | Refusal:
        """Ask the producer of ``value``, whose readers were looked after."""
        producer = value.producer()
        assert producer is not None
        if producer in self.entered:
            return Refusal(f"{describe(producer)} in front of it is reached on two ways", producer)
        self.entered.add(producer)
        self.visited += 1
        if self.visited > MAX_NODES:
            return Refusal(f"more than {MAX_NODES} operators stand between it and the linear operators in front of it")
        row = self.table.row(producer)
        if row is None or row.backward is None:
            return Refusal(f"{describe(producer)} stands in front of it", producer)
        index = value.index()
        assert index is not None
        return row.backward(producer, index, mapping, self)


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
