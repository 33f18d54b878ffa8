"""What becomes of the maps of a graph: which disappear, why the others stay, and what lies between them.

The maps are asked in the order of what they cost to stay, the widest pass first, each as one transaction: it holds, or
everything is as before. Source: the order is Kruskal's (On the shortest spanning subtree of a graph, 1956): what stays
would close a cycle that is not neutral.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine, origins_of
from normdeploy.rewrite.affine.far_from_zero import is_centred, is_far
from normdeploy.rewrite.affine.operators_of_map import passes_now
from normdeploy.rewrite.gauge.conflicts.reasons import Reason, reason_of_conflict
from normdeploy.rewrite.gauge.free_choices import choose
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.gauge.reached import Reached, is_one_for_rows
from normdeploy.rewrite.gauge.rules.maps import dissolve, unburdened
from normdeploy.rewrite.gauge.rules.oriented_product import product_of
from normdeploy.rewrite.gauge.stated_ties import build
from normdeploy.rewrite.gauge.ties import Marks, Ties


@dataclass
class Plan:
    """What becomes of the maps of a graph.

    Args:
        solution: the gauges.
        gone: the maps that disappear. halves: what of a map that stays disappears: "scale" or "shift".
        stays: why the others stay. edits: the changed operators.
    """

    solution: Solution
    gone: list[ir.Node]
    halves: dict[ir.Node, str]
    stays: dict[ir.Node, Reason]
    edits: list[Edit] = field(default_factory=list)


class Search:
    """The maps of a graph, asked one after another, with a mark in front of each to which the search can return.

    Args:
        graph: its nodes in topological order.
        opaque: operators to treat as if they had no rule.
        unchanged: maps that stay as they are.
        pads: see :class:`.ties.Ties`.
        around: values; only maps that hang together with them are asked. All by default.
    """

    def __init__(
        self,
        graph: ir.Graph,
        opaque: Collection[ir.Node],
        unchanged: Collection[ir.Node] = (),
        pads: Mapping[ir.Node, str] = MappingProxyType({}),
        around: Collection[ir.Value] = (),
    ) -> None:
        self._given = graph, opaque, pads, around
        self._reached = Reached(graph, around)
        self._build = partial(build, graph, opaque, unchanged, pads, self._reached)
        self.ties = self._built()
        gauges, maps = self.ties.of, [node for node in graph if is_affine(node) and node in self._reached.nodes]
        stiff = {node: why for node, why in self.ties.stiff.items() if node not in opaque and node not in unchanged}
        self._unfollowed = {
            node: Reason(stiff.get(node, "the rank of its input is not known"))
            for node in maps
            if node in stiff or not {node.outputs[0], node.inputs[0]} <= gauges.keys()
        }
        left = [node for node in maps if node not in self._unfollowed]
        self._order = sorted(left, key=_dearest_first)
        self._asked: list[_Asked] = []

    def leaving(self, unchanged: Collection[ir.Node]) -> Search:
        """Return a search that starts anew, with maps that stay as they are."""
        return Search(*self._given[:2], unchanged, *self._given[2:])

    def _built(self) -> Ties:
        """Return the ties of all that the maps reach."""
        ties = self._build()
        while self._reached.reach(ties.passed):
            ties = self._build()
        return ties

    def _widened(self) -> bool:
        """Ask also what lies in front of products whose results, tied along rows, keep maps; tell whether some does."""
        scales, shifts = (np.zeros(system.size, bool) for system in (self.ties.scales, self.ties.shifts))
        reasons = [asked.reason for asked in self._asked if asked.reason is not None]
        for scaled, unknowns in (reason.about for reason in reasons):
            (scales if scaled else shifts)[list(unknowns - {0})] = True
        found: list[ir.Value | None] = []
        for node in self._reached.products if reasons else ():
            product = product_of(node)
            gauge = None if product is None else self.ties.of.get(product.result)
            if product is None or gauge is None or is_one_for_rows(node.inputs[product.x]):
                continue
            if scales[gauge.scale_of].any() or shifts[gauge.shift_of].any():
                found.append(node.inputs[product.x])
        if not self._reached.reach(found):
            return False
        self.ties, self._asked = self._built(), []
        return True

    def plan(
        self, stays: Mapping[ir.Node, Reason], whole: Collection[ir.Node], light: Mapping[ir.Node, Reason]
    ) -> Plan:
        """Ask every map that does not have to stay already, from the first one on that is asked otherwise than before.

        Args:
            stays: maps that have to stay, and why.
            whole: maps that have to stay with both halves.
            light: maps that may leave only if what they read carries no shift for it, and the reason to stay else.
        """
        self._ask(stays, whole, light)
        gone = [asked.node for asked in self._asked if asked.gone]
        halves = {asked.node: asked.half for asked in self._asked if asked.half}
        self.ties.halved = {*halves.items(), *self._kept_simple()}
        kept = {asked.node: asked.reason for asked in self._asked if asked.reason is not None}
        return Plan(choose(self.ties), gone, halves, {**stays, **kept, **self._unfollowed})

    def _kept_simple(self) -> Iterator[tuple[ir.Node, str]]:
        """State of maps that stay that they get no shift, or no scale, where they have none; yield those that can."""
        for half in ("scale", "shift"):
            stay = [asked.node for asked in self._asked if asked.reason is not None and _lacks(asked.node, half)]
            if stay and not _state_half(stay, half, self.ties):
                stay = [node for node in stay if len(stay) > 1 and _state_half([node], half, self.ties)]
            yield from ((node, half) for node in stay)

    def can_save_more(self, plan: Plan) -> bool:
        """Tell whether more passes disappear than by a plan if whatever the ties allow can be written."""
        self._ask({}, (), {})
        elsewhere = set(plan.gone).difference(self._order)
        return _passes([*elsewhere, *(asked.node for asked in self._asked if asked.gone)]) > saved(plan)

    def _ask(
        self, stays: Mapping[ir.Node, Reason], whole: Collection[ir.Node], light: Mapping[ir.Node, Reason]
    ) -> None:
        """Ask every map, and again where what lies in front of products is to be asked too."""
        how = [_How(node not in stays, node not in whole, light.get(node)) for node in self._order]
        same = next(
            (at for at, (asked, now) in enumerate(zip(self._asked, how, strict=False)) if asked.how != now),
            len(self._asked),
        )
        while 0 < same < len(self._asked) and self._asked[same].marks is self._asked[same - 1].marks:
            same -= 1
        if same < len(self._asked):
            self.ties.rollback(self._asked[same].marks)
        del self._asked[same:]
        alone = [not now.at_once for now in how]
        most, staying = len(how), dict[ir.Node, Reason]()
        while (at := len(self._asked)) < len(how):
            count = next((n for n, one in enumerate(alone[at : at + most]) if one), most)
            together = [_Asked(*pair) for pair in zip(self._order[at : at + max(count, 1)], how[at:], strict=False)]
            if len(together) == 1:
                together[0].ask(self.ties)
                if not alone[at]:
                    most = max(most, 2) if together[0].gone else 1
            elif contradicting := _contradicting(together, self.ties, staying):
                for place in contradicting:
                    alone[at + place] = True
                if _FEW * len(contradicting) < len(together):  # each that stays hides others behind it
                    most = len(together) // 2
                continue
            elif len(together) >= most:  # not where one that is asked alone cut them off: that says nothing of more
                most *= 2
            self._asked += together
        if self._widened():
            self._ask(stays, whole, light)


_FEW = 8
"""Maps of which less than one contradicts are asked in halves."""


def _contradicting(together: Sequence[_Asked], ties: Ties, staying: dict[ir.Node, Reason]) -> set[int]:
    """Ask several maps in one step; return the places of those to be asked alone: where there are some, none was asked.

    Args:
        together: the maps.
        ties: get what is stated.
        staying: maps that contradict what already holds, whatever becomes of the others; completed in place.
    """
    marks = ties.mark()
    for asked in together:
        asked.marks = marks
    while True:
        asking = [asked for asked in together if asked.node not in staying]
        conflict = dissolve([asked.node for asked in asking], ties) if asking else None
        if conflict is None:
            for asked in together:
                asked.reason = staying.get(asked.node)
                asked.gone = asked.reason is None
            return set()
        ties.rollback(marks)
        undecided = set()
        for place in sorted(conflict.equation.places(conflict.wrong)):
            node = asking[place].node
            own = None if halves_of(node) else dissolve([node], ties)
            if own is None:
                undecided.add(together.index(asking[place]))
            else:
                staying[node] = reason_of_conflict(node, own, ties)
            ties.rollback(marks)
        if undecided:
            return undecided


@dataclass(frozen=True)
class _How:
    """How a map is asked.

    Args:
        whole: the whole of it may go. half: a half of it may.
        light: why it stays if what it reads would have to carry a shift; None where it may.
    """

    whole: bool
    half: bool
    light: Reason | None

    @property
    def at_once(self) -> bool:
        """Whether it may be asked together with others."""
        return self.whole and self.light is None


class _Asked:
    """One map that was asked: what became of it, and what held before.

    Args:
        node: the map.
        how: it is asked.
    """

    def __init__(self, node: ir.Node, how: _How) -> None:
        self.node, self.how = node, how
        self.gone, self.half = False, ""
        self.reason: Reason | None = None
        self.marks: Marks

    def ask(self, ties: Ties) -> None:
        """Ask this map alone; what is stated changes the ties."""
        self.marks = ties.mark()
        node, how = self.node, self.how
        if how.whole:
            conflict = dissolve([node], ties)
            if conflict is not None:
                self.reason = reason_of_conflict(node, conflict, ties)
            elif how.light is not None and not unburdened(node, ties):
                self.reason = how.light
            else:
                self.gone = True
                return
            ties.rollback(self.marks)
        halves = halves_of(node) if how.half else ()
        self.half = next((half for half in halves if _state_half([node], half, ties)), "")


def _state_half(nodes: Sequence[ir.Node], half: str, ties: Ties) -> bool:
    """State that a half of some maps is nothing; tell whether that can be, and state nothing where it cannot."""
    marks = ties.mark()
    if dissolve(nodes, ties, scale=half == "scale", shift=half == "shift") is None:
        return True
    ties.rollback(marks)
    return False


def _dearest_first(node: ir.Node) -> tuple[float, bool]:
    """Of two alike a norm's own is the one to stay: no row says so."""
    return -bytes_moved.pass_bytes(node.outputs[0]), all(origin.part for origin in origins_of(node))


def _lacks(node: ir.Node, half: str) -> bool:
    return affine_map(node).no_shift if half == "shift" else affine_map(node).no_scale


def halves_of(node: ir.Node) -> tuple[str, ...]:
    """Return which halves may go of a map that costs two passes as it is."""
    if is_centred(node) or passes_now(node) < 2:
        return ()
    return ("scale",) if is_far(node) else ("scale", "shift")


def saved(plan: Plan) -> float:
    """Return the bytes of the passes that disappear; what had no row before and is one now takes its own off."""
    maps = {edit.node for edit in plan.edits if is_affine(edit.node) and edit.absorbs and not origins_of(edit.node)}
    return _passes(plan.gone) - sum(bytes_moved.pass_bytes(node.outputs[0]) for node in maps)


def _passes(gone: Iterable[ir.Node]) -> float:
    return sum(bytes_moved.pass_bytes(node.outputs[0]) for node in gone if origins_of(node))
