"""What a value is of the values in front of it, through sums and compositions of linear operators.

A value is a map of itself; behind an operator A of a value that is B of x it is A @ B of x; a sum of values that are A
and B of one x is A + B of x. The tree of sums and compositions is walked back as long as nothing else reads what lies
between. For every x that is met, the maps are put together; where that fails, the reason is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import onnx_ir as ir

from normdeploy.graph import is_constant
from normdeploy.graph.edit import only_reader
from normdeploy.rewrite.affine import is_affine
from normdeploy.rewrite.affine.far_from_zero import is_far, offset_in
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.branches import operator_as_map
from normdeploy.rewrite.branches.linear_map import LinearMap
from normdeploy.rewrite.branches.operator_as_map import Frame, Reading
from normdeploy.rewrite.branches.tree import Leaf, Tree, is_sum, tree_at
from normdeploy.rewrite.branches.window import Apart

Pays = Callable[[LinearMap, Reading, LinearMap], bool]
"""(map of some leaves, one more leaf, map of all of them) -> whether they should be one."""

DEPTH = 8
"""Operators of one chain that are looked at."""


@dataclass(frozen=True)
class Refusal:
    """Why operators are no one map.

    Args:
        why: the reason.
        nodes: the operators.
        reading: the map that they would be, where that is known.
    """

    why: str
    nodes: tuple[ir.Node, ...]
    reading: Reading | None = None

    @property
    def weighted(self) -> int:
        """How many of them have weights."""
        return sum(operator_as_map.has_weights(node) for node in self.nodes)


@dataclass
class Found:
    """What a value is of other values.

    Args:
        readings: the map for each of them, nearest first.
        refused: for those of which it is no one map, though linear, the reason.
    """

    readings: dict[ir.Value, Reading] = field(default_factory=dict)
    refused: dict[ir.Value, Refusal] = field(default_factory=dict)


@dataclass(frozen=True)
class Sum:
    """Leaves of a sum that are maps of one value.

    Args:
        tree: the whole sum.
        frame: where the channels are.
        members: the leaves that go together, and how each is read; constants that become part of the bias have None.
        whole: their sum as one.
        refused: why others that are linear in the same value stay apart.
    """

    tree: Tree
    frame: Frame
    members: tuple[tuple[Leaf, Reading | None], ...]
    whole: Reading | None
    refused: tuple[Refusal, ...]

    @property
    def weighted(self) -> int:
        """How many operators with weights are in it, or would be."""
        held = sum(len(reading.weighted) for _, reading in self.members if reading is not None)
        return held + sum(refusal.weighted for refusal in self.refused)

    @property
    def rest(self) -> list[Leaf]:
        """The leaves that are not in it."""
        return [leaf for leaf in self.tree.leaves if all(leaf is not member for member, _ in self.members)]


class Search:
    """Reads one graph; what it has read is forgotten when the graph changes.

    Args:
        graph: chains do not leave it.
        maps_go: affine maps are still to be moved, and cost nothing.
    """

    def __init__(self, graph: ir.Graph, *, maps_go: bool = False) -> None:
        self.graph, self.maps_go = graph, maps_go
        self._steps: dict[tuple[ir.Node, Frame], Reading | Apart | None] = {}
        self._found: dict[tuple[ir.Value, Frame, bool, int], Found] = {}

    def forget(self) -> None:
        """Note that the graph has changed."""
        self._steps.clear()
        self._found.clear()

    def step(self, node: ir.Node, frame: Frame) -> Reading | Apart | None:
        """Return :func:`.operator_as_map.step`, or what it raised."""
        key = node, frame
        if key not in self._steps:
            try:
                self._steps[key] = operator_as_map.step(node, frame)
            except Apart as reason:
                self._steps[key] = reason
        return self._steps[key]

    def of(self, value: ir.Value, frame: Frame, *, free: bool = True, depth: int = DEPTH) -> Found:
        """Return what a value is of the values in front of it.

        Args:
            value: the end of all chains.
            frame: where it has its channels.
            free: whether nothing else reads it, so that what makes it may go.
            depth: operators to look at.
        """
        key = value, frame, free, depth
        if key not in self._found:
            self._found[key] = self._of(*key)
        return self._found[key]

    def _of(self, value: ir.Value, frame: Frame, free: bool, depth: int) -> Found:
        found = Found()
        plain = operator_as_map.itself(value, frame)
        if plain is not None:
            found.readings[value] = plain
        producer = value.producer()
        if not free or depth == 0 or producer is None or producer.graph is not self.graph:
            return found
        step = self.step(producer, frame)
        if isinstance(step, Reading):
            self._compose(step, self._before(step.source, producer, frame, depth), found)
        elif isinstance(step, Apart) and producer.inputs[0] is not None:
            inner = self._before(producer.inputs[0], producer, frame, depth)
            for source, before in inner.readings.items():
                found.refused[source] = Refusal(str(step), (*before.nodes, producer))
        elif is_sum(producer):
            tree = tree_at(producer)
            for part in [] if tree is None else self.sums(tree, frame, depth - 1):
                if part.whole is not None and not part.rest:
                    nodes = (*part.whole.nodes, *part.tree.nodes)
                    found.readings.setdefault(part.whole.source, replace(part.whole, nodes=nodes))
        return found

    def _before(self, value: ir.Value, reader: ir.Node, frame: Frame, depth: int) -> Found:
        return self.of(value, frame, free=only_reader(value) is reader, depth=depth - 1)

    def _compose(self, step: Reading, inner: Found, found: Found) -> None:
        if step.source not in inner.readings:  # a value of unknown shape
            found.readings[step.source] = step
        for source, before in inner.readings.items():
            try:
                if not is_affine(step.nodes[0]) and not is_sum(step.nodes[0]):
                    _require_near(before)
                found.readings.setdefault(source, step @ before if before.nodes else step)
            except Apart as reason:
                pair = f"{describe(before.nodes[-1])}, then {describe(step.nodes[0])}"
                nodes = *before.nodes, *step.nodes
                fit = step.map.ins == before.map.outs and not (before.map.window.cuts or before.map.window.spreads)
                would = Reading(source, nodes, step.map.over(before.map)) if fit else None
                found.refused[source] = Refusal(f"{pair}: {reason}", nodes, would)
        for source, refusal in inner.refused.items():
            found.refused.setdefault(source, Refusal(refusal.why, (*refusal.nodes, *step.nodes)))

    def sums(self, tree: Tree, frame: Frame, depth: int = DEPTH, *, pays: Pays | None = None) -> list[Sum]:
        """Return which leaves of a sum are maps of one value, for every such value; the most shared comes first.

        Args:
            tree: the sum.
            frame: where the channels are.
            depth: operators to look at, per leaf.
            pays: whether a map of some leaves should take up one more; by default wherever it can.
        """
        if not self._meet(tree):
            return []
        options = [
            self.of(leaf.value, frame, free=only_reader(leaf.value) is leaf.reader, depth=depth) for leaf in tree.leaves
        ]
        shared = Counter(source for found in options for source in {**found.readings, **found.refused})
        sources = [source for source, count in shared.most_common() if count > 1]
        return [part for source in sources for part in self._sums(tree, options, source, frame, pays)]

    def _meet(self, tree: Tree) -> bool:
        """Tell whether two leaves may be maps of one value, by the kinds of operators in front of them alone."""
        seen: set[ir.Value] = set()
        for leaf in tree.leaves:
            own, queue = set[ir.Value](), [(leaf.value, only_reader(leaf.value) is leaf.reader)]
            while queue:
                value, free = queue.pop()
                own.add(value)
                producer = value.producer()
                if free and (operator_as_map.may_be_map(producer) or is_sum(producer)) and producer is not None:
                    queue += [(read, only_reader(read) is producer) for read in producer.inputs if read is not None]
            own = {value for value in own if not is_constant(value)}
            if own & seen:
                return True
            seen |= own
        return False

    def _sums(
        self, tree: Tree, options: Sequence[Found], source: ir.Value, frame: Frame, pays: Pays | None
    ) -> list[Sum]:
        refused = [found.refused[source] for found in options if source in found.refused.keys() - found.readings.keys()]
        leaves = zip(tree.leaves, options, strict=True)
        read_as = [(leaf, found.readings[source]) for leaf, found in leaves if source in found.readings]
        read_as.sort(key=lambda pair: (not pair[1].weighted, -max(pair[1].map.window.span, default=0)))
        groups: list[tuple[LinearMap, list[tuple[Leaf, Reading]]]] = []
        for leaf, reading in read_as:
            signed = reading.map if leaf.sign > 0 else -reading.map
            for at, (whole, members) in enumerate(groups):
                try:
                    wider = whole + signed
                except Apart as reason:
                    last = describe(reading.nodes[-1]) if reading.nodes else "the input itself"
                    refused.append(Refusal(f"{last}: {reason}", reading.nodes))
                    continue
                if pays is None or pays(whole, reading, wider):
                    groups[at] = wider, [*members, (leaf, reading)]
                    break
            else:
                groups.append((signed, [(leaf, reading)]))
        if not groups:
            return [Sum(tree, frame, (), None, tuple(refused))]
        return [self._group(tree, frame, source, group, refused) for group in groups]

    def _group(
        self,
        tree: Tree,
        frame: Frame,
        source: ir.Value,
        group: tuple[LinearMap, list[tuple[Leaf, Reading]]],
        refused: Sequence[Refusal],
    ) -> Sum:
        whole, read_as = group
        members: list[tuple[Leaf, Reading | None]] = [*read_as]
        if len(members) < 2:
            return Sum(tree, frame, tuple(members), None, tuple(refused))
        for leaf in tree.leaves if frame is Frame.ROWS else ():
            bias = operator_as_map.vector(leaf.value, whole.outs)
            if bias is not None and _rank(leaf.value) <= _rank(source):
                whole = whole.shifted(bias) if leaf.sign > 0 else -(-whole).shifted(bias)
                members.append((leaf, None))
        nodes = tuple(node for _, reading in read_as for node in reading.nodes)
        return Sum(tree, frame, tuple(members), Reading(source, nodes, whole), tuple(refused))


def _require_near(before: Reading) -> None:
    """Require that no map in front of what sums its results sees values far from zero (:mod:`.far_from_zero`).

    Raises:
        Apart: one does. One that is summed with others, or stands behind weights, loses nothing that is not lost there.
    """
    for node in takewhile(is_affine, before.nodes):
        if is_far(node):
            raise Apart(
                f"values {offset_in(node):.2g} times as far from zero as what {describe(node)} makes of them would be "
                "summed without it, and lose that factor of precision; centre the data in front of the network"
            )


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else value.shape.rank()
