"""The search towards the inputs: who in front of a value takes an affine map over.

It walks the graph along the rows of :mod:`.table` and visits at most :data:`.naming.MAX_NODES` operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.rewrite.affine import constant
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import MAX_NODES, describe, readers
from normdeploy.rewrite.affine.plan import BackwardPlan, Refusal, Region

if TYPE_CHECKING:
    from normdeploy.rewrite.affine.table import Table

Offset = Callable[["Backward", ir.Value, AffineMap, ir.Node], BackwardPlan | Refusal]
"""Plans a shift of a value that others read too: of the search, the value, the shift and the reader that wants it."""


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
        offset: asked once per plan for a value with several readers of which one wants a shift: who else may take it
            off again (see :mod:`.both_ways`).
    """

    table: Table
    graph: ir.Graph
    joint: bool = False
    offset: Offset | None = None
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
            offset, self.offset = self.offset, None
            return offset(self, value, mapping, reader)
        return blocked

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
