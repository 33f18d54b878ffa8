"""Remove every affine map whose ties can be met: build the ties, ask map after map, write the constants, check each.

1. Every operator states its ties (:mod:`.stated_ties`).
2. The maps are asked in the order of what they cost to stay (:mod:`.removal_plan`), each as one transaction: s_y = a
   s_x and t_y = a t_x + b are stated, and taken back where they contradict what holds. What stays closes a
   contradiction, whatever was asked first; its reason is that contradiction (:mod:`.reasons`).
3. Unknowns that are still free are chosen (:mod:`.free_choices`), and every operator says what it becomes. One that
   cannot be written so (its weights would overflow), or a map that would cost more than it saves (:mod:`.problems`),
   makes the maps it belongs to stay, and the ties are solved again.
4. Each operator is checked alone, before and after, in float64, and what nothing writes by its gauge
   (:mod:`.edit_check`); then the graph changes.

The method is described in docs/folding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.graph import module_path
from normdeploy.graph.edit import free_name, share_names, take_out, take_place
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of, note_holders
from normdeploy.rewrite.affine.affine_node import (
    adopt_origins,
    affine_map,
    is_affine,
    origins_of,
    set_reason,
    set_taken,
    settle,
    taken_by,
)
from normdeploy.rewrite.affine.far_from_zero import is_centred
from normdeploy.rewrite.gauge.changed_values import takers_of
from normdeploy.rewrite.gauge.checks.edit_check import Check, checks_of, require_borders
from normdeploy.rewrite.gauge.conflicts.reasons import Reason
from normdeploy.rewrite.gauge.problems import burdened, dear, decentred, narrowed, written
from normdeploy.rewrite.gauge.reached import ends_of
from normdeploy.rewrite.gauge.removal_plan import Plan, Search, halves_of, saved
from normdeploy.rewrite.gauge.rules.elementwise import is_relu
from normdeploy.rewrite.gauge.rules.stored_bias import WHOLE_STEPS, has_stored_bias
from normdeploy.rewrite.gauge.smaller_places import closed, opened
from normdeploy.rewrite.rewrite_context import RewriteContext, RewritePass

_Form = dict[ir.Node, tuple[ir.Value | None, ...]]
"""The operators of a graph, and what they read."""


def _form(graph: ir.Graph) -> _Form:
    return {node: tuple(node.inputs) for node in graph}


def _turned_back(had: tuple[ir.Value | None, ...] | None, reads: tuple[ir.Value | None, ...], left: _Form) -> bool:
    """Tell whether an operator reads what it had, but for Transposes that undo each other: those pass every gauge."""
    if had is None or len(had) != len(reads):
        return False
    return all(one is other or _is_turned(one, other, left) for one, other in zip(had, reads, strict=True))


def _is_turned(value: ir.Value | None, source: ir.Value | None, left: _Form) -> bool:
    """Tell whether a value was made of another one by Transposes that undo each other."""
    axes: np.ndarray | None = None
    while value is not None and value is not source:
        node = value.producer()
        perm = () if node is None or not is_standard(node, "Transpose") else node.attributes.get_ints("perm", ())
        if node is None or not perm or not left.get(node):
            return False
        axes = np.array(perm) if axes is None else np.array(perm)[axes]
        value = left[node][0]
    return value is not None and axes is not None and bool((axes == np.arange(len(axes))).all())


class MoveAffine(RewritePass):
    """Absorb Affine nodes into the operators around them.

    Args:
        context: ledger and check.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__(context)
        self._left: dict[ir.Graph, tuple[_Form, set[ir.Node]]] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Remove what can be removed, in every graph of the model, as far as it is not as this pass has left it."""
        modified = False
        share_names(model)
        note_holders(model)
        for graph in graphs_of(model):
            if any(is_affine(node) for node in graph) and (around := self._changed(graph)) != set():
                graph.sort()
                modified |= self.move(graph, around or ())
        return ir.passes.PassResult(model, modified)

    def _changed(self, graph: ir.Graph) -> set[ir.Value] | None:
        """Return what operators read and write that are not as this pass has left them, or not there; None for all."""
        if graph not in self._left:
            return None
        (left, halved), now = self._left[graph], _form(graph)
        changed = [
            node for node, read in now.items() if (had := left.get(node)) != read and not _turned_back(had, read, left)
        ]
        gone = [node for node in left if node not in now and not is_standard(node, "Transpose")]
        found = [value for node in (*changed, *gone) for value in left.get(node, ())]
        found += [value for node in changed for value in now[node]]
        found += [
            value for node in now if node not in left or node in halved for value in (*node.inputs, *node.outputs)
        ]
        return {value for value in found if value is not None}

    def settled(self, graph: ir.Graph) -> Plan:
        """Return what would become of one graph's maps; the graph stays as it is."""
        graph.sort()
        return self._checked(lambda opaque: self._consistent(Search(graph, opaque)))[0]

    def move(self, graph: ir.Graph, around: Collection[ir.Value] = ()) -> bool:
        """Remove what can be removed from one graph, its bodies left out.

        Args:
            graph: the graph.
            around: values; only maps that hang together with them are asked. All by default.
        """
        plan, checks = self._checked(lambda opaque: self._best(graph, opaque, around))
        for node, reason in plan.stays.items():
            set_reason(node, str(reason), reason.chain)
        if not plan.gone and not plan.halves:
            self._left[graph] = _form(graph), set()
            return False
        takers = {node: takers_of(node, plan) for node in (*plan.gone, *plan.halves)}
        paths = {taker: module_path(taker) for found in takers.values() for taker in found}  # as the user names them
        at, carried = plan.solution, self.context.carried
        require_borders(at)
        changed = [(value, gauge) for value, gauge in at.ties.of.items() if not at.is_identity(gauge)]
        carried.change((value, at.scale(gauge), at.shift(gauge)) for value, gauge in changed)
        carried.forget(value for value, gauge in changed if at.ties.repeats(value))  # no array says that of all sizes
        carried.forget(whole.outputs[0] for whole in at.ties.parts.values() if at.touches(whole))
        for edit in plan.edits:
            edit.apply()
            for made in edit.made:
                if edit.node.outputs[0] in made.inputs:  # the Add of a bias: its result is what the operator's was
                    carried.hand_over(edit.node.outputs[0], made.outputs[0])
        for check in checks:
            check.verify()
        self._remove(graph, plan, takers, paths)
        for edit in plan.edits:
            edit.tidy()
        for node, half in plan.halves.items():
            set_taken(node, half, dict.fromkeys(paths[taker] for taker in takers[node]))
        composed = [edit.node for edit in plan.edits if edit.absorbs and is_affine(edit.node)]
        halved = {node for node in composed if halves_of(node)}  # of what such a map has become a half may leave
        self._left[graph] = _form(graph), halved
        return True

    def _checked(self, solve: Callable[[set[ir.Node]], Plan]) -> tuple[Plan, list[Check]]:
        """Solve until every operator that changes can be evaluated; those that cannot have no rule then."""
        opaque: set[ir.Node] = set()
        while True:
            plan = solve(opaque)
            checks, unchecked = checks_of(self.context, plan.edits)
            if unchecked <= opaque:
                return plan, checks
            opaque |= unchecked

    def _best(self, graph: ir.Graph, opaque: set[ir.Node], around: Collection[ir.Value]) -> Plan:
        """Solve; where maps stay, try whether other gauges of what is in the way, or smaller places, save more."""
        best = self._consistent(Search(graph, opaque, around=around))
        in_the_way = {other for reason in best.stays.values() for other in reason.nodes}
        pads = [node for node in in_the_way if node.op_type == "Pad" or is_relu(node)]

        def with_pads(mode: str, among: Collection[ir.Value]) -> Search:
            return Search(graph, opaque, (), dict.fromkeys(pads, mode), among)

        padded = [value for node in pads for value in ends_of(node)]
        if pads and (loose := with_pads("loose", padded)).can_save_more(best):  # what no Pad keeps none has to let go
            for mode, near in (("uniform", with_pads("uniform", padded)), ("loose", loose)):
                if near.can_save_more(best):
                    best = max(best, self._consistent(with_pads(mode, around)), key=saved)
        biases = [node for node in in_the_way if has_stored_bias(node)]
        while biases:
            modes = {**best.solution.ties.pads, **dict.fromkeys(biases, WHOLE_STEPS)}
            other = self._consistent(Search(graph, opaque, (), modes, around))
            if saved(other) >= saved(best) and other.stays.keys() <= best.stays.keys():
                best = other
            broken = {node for reason in other.stays.values() for node in reason.nodes}
            left = [node for node in biases if node not in broken]
            biases = left if len(left) < len(biases) else []
        contradicting = [reason.stating for reason in best.stays.values()]
        places = opened(graph, set().union(*contradicting) if all(contradicting) else best.solution.ties.nodes)
        if places:
            other = self._consistent(Search(graph, opaque, (), best.solution.ties.pads, around))
            if saved(other) > saved(best):
                return other
            closed(places)
        return best

    def _consistent(self, search: Search) -> Plan:
        """Solve until every operator can be written and nothing costs more than it saves."""
        stays: dict[ir.Node, Reason] = {}
        light: dict[ir.Node, Reason] = {}
        whole: set[ir.Node] = set()
        while True:
            plan = search.plan(stays, whole, light)
            heavy = {node: reason for node, reason in burdened(plan).items() if node not in light}
            if heavy:
                light |= heavy
                continue
            problem = written(plan)
            if problem is None:
                problem = dear(plan) or decentred(plan, stays) or narrowed(plan)
            if problem is None:
                return plan
            whole |= {node for node in problem if node in stays or node in plan.halves}
            stays |= problem
            if any(is_centred(node) for node in problem):
                search = search.leaving([node for node in stays if is_centred(node)])

    def _remove(
        self, graph: ir.Graph, plan: Plan, takers: dict[ir.Node, list[ir.Node]], paths: dict[ir.Node, str]
    ) -> None:
        """Take the maps out that do nothing any more; values that are not what they were get names of their own."""
        ties, solution = plan.solution.ties, plan.solution
        for value, gauge in ties.of.items():
            if value.name and not value.is_graph_input() and not solution.is_identity(gauge):
                value.name = free_name(graph, f"{value.name}.carried")
        for node in plan.gone:
            source, result = required(node, 0), node.outputs[0]
            named = result.name if solution.is_identity(ties.of.get(result)) else None
            self._settle(node, takers[node], paths, {edit.node: edit.notes for edit in plan.edits})
            given = source.is_graph_input() or source.is_graph_output() or source.graph is not graph
            if result.is_graph_output() and given:
                source = _passed_on(graph, node)
            self.context.carried.same(source, result)
            fixed = source.is_graph_input() or source.is_initializer()
            take_place(source, result, named=named is not None and not fixed)
            take_out([node])

    def _settle(
        self, node: ir.Node, takers: list[ir.Node], paths: dict[ir.Node, str], notes: Mapping[ir.Node, list[str]]
    ) -> None:
        maps = [taker for taker in takers if is_affine(taker)]
        if maps and len(maps) == len(takers):
            adopt_origins(maps[0], origins_of(node))
            return
        names = list(dict.fromkeys([*taken_by(node), *(paths[taker] for taker in takers)]))
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        mapping = affine_map(node)
        nothing = mapping.no_scale and mapping.no_shift
        alone = "it changes nothing" if nothing else "what it does is undone, or not seen, behind it"
        said = "; ".join(note for taker in takers for note in notes.get(taker, ()))
        settle(self.context.ledger, node, "folded", shown, said if shown else alone)


def _passed_on(graph: ir.Graph, node: ir.Node) -> ir.Value:
    """Return a copy of what a map reads: an output of the graph cannot be an input, or another output, by two names."""
    shown = node.outputs[0]
    made = ir.Node("", "Identity", [node.inputs[0]], outputs=[ir.Value(shape=shown.shape, type=shown.type)])
    graph.insert_before(node, made)
    return made.outputs[0]


_NAMED = 6
"""Takers named in a ledger row."""
