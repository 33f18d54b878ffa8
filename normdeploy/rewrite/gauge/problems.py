"""What speaks against a plan: each of these returns the maps that have to stay after all, with the reason.

The ties say what is right in real numbers. What is left to ask is whether the constants can be stored, whether the
network loses precision, and whether it costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from normdeploy.errors import RewriteError
from normdeploy.graph import module_path
from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.affine_node import is_affine
from normdeploy.rewrite.affine.constant import holds_less
from normdeploy.rewrite.affine.far_from_zero import is_centred
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.changed_values import component, nearest_maps, owners, takers_of
from normdeploy.rewrite.gauge.conflicts.reasons import Reason
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused, Solution, UndoesZero
from normdeploy.rewrite.gauge.removal_plan import Plan
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.scales_of_zero import scales_by_zero
from normdeploy.rewrite.gauge.shift_limits import burdens, divided_by_zero, far, inexact, undecided

_TOO_DEAR = "absorbing it would copy or compute more than the pass over its tensor that it saves"


def written(plan: Plan) -> dict[ir.Node, Reason] | None:
    """Let every operator say what it becomes; return the maps that have to stay where one cannot."""
    solution = plan.solution
    gone = set(plan.gone)
    problems = {node: Reason(text) for node, text in (inexact(plan.gone, solution) | far(plan.gone, solution)).items()}
    for node in divided_by_zero([*plan.gone, *plan.halves], solution):
        problems[node] = plan.stays.get(node, Reason("what behind it reads its channels of scale 0 would divide by it"))
    for node, clause in undecided(solution).items():
        text = f"behind it {describe(node)} {clause}"
        problems |= dict.fromkeys(nearest_maps(node, plan), Reason(text))
    if problems:
        return problems
    plan.edits, refused = written_operators(solution, gone)
    undoing = [refusal for refusal in refused if isinstance(refusal, UndoesZero)]
    zeros = scales_by_zero(solution.ties) if undoing else ()
    for undone in undoing:  # the map by 0 has to stay, and not what it would not let go
        problems |= dict.fromkeys(nearest_maps(undone.node, plan, zeros), Reason(undone.reason))
    if problems:
        return problems
    for refusal in refused:
        nearest = nearest_maps(refusal.node, plan)
        if not nearest:
            where = module_path(refusal.node)
            raise RewriteError(f"gauge of {refusal.node.op_type}", where, refusal.reason) from refusal
        problems |= {found: Reason(refusal.reason) for found in nearest}
    return problems or None


def written_operators(solution: Solution, gone: Collection[ir.Node] = ()) -> tuple[list[Edit], list[Refused]]:
    """Let every operator but those of ``gone`` say what it becomes; return the changes, and what cannot be written."""
    edits: list[Edit] = []
    refused: list[Refused] = []
    for node in solution.ties.nodes:
        rule = rule_of(node)
        if rule is None or node in gone or node in solution.ties.parts or not solution.touches(node):
            continue
        edit = Edit(node, solution)
        try:
            rule.write(edit)
        except Refused as refusal:
            refused.append(refusal)
        else:
            edits.append(edit)
    solution.settle_copies()
    return edits, refused


def burdened(plan: Plan) -> dict[ir.Node, Reason]:
    """Return the maps that make what others read carry too much: they may leave without doing so, or stay."""
    return {node: Reason(text) for node, text in burdens(plan.gone, plan.solution).items()}


def dear(plan: Plan) -> dict[ir.Node, Reason] | None:
    """Return the maps that have to stay because what takes them costs more than they do.

    Where what hangs together costs more than it saves, each operator's cost is charged to the map nearest to it, and
    those maps stay that are charged more than they save: there is one, since it is so of all of them together.
    """
    costs = {edit.node: edit.cost for edit in plan.edits if edit.cost > 0}
    seen: set[ir.Node] = set()
    found: dict[ir.Node, Reason] = {}
    for start in costs:
        if start in seen:
            continue
        maps, absorbers = component(start, plan)
        seen |= absorbers
        saved = {node: bytes_moved.pass_bytes(node.outputs[0]) for node in maps}
        if not maps or sum(costs.get(node, 0.0) for node in absorbers) < sum(saved.values()):
            continue
        charged = dict.fromkeys(maps, 0.0)
        for node, nearest in owners(maps, plan).items():
            charged[nearest] += costs.get(node, 0.0)
        found |= {node: Reason(_TOO_DEAR) for node in maps if charged[node] >= saved[node]}
    return found or None


def narrowed(plan: Plan) -> dict[ir.Node, Reason] | None:
    """Return the maps that have to stay because what would take them, beyond a Cast, holds fewer digits."""
    ties = plan.solution.ties
    if not any(node.op_type == "Cast" and node.outputs[0] in ties.of for node in ties.nodes):
        return None
    found: dict[ir.Node, Reason] = {}
    for node in plan.gone:
        for taker in takers_of(node, plan):
            if holds_less(taker.outputs[0].dtype, node.outputs[0].dtype):
                found[node] = Reason(
                    f"the other side of a Cast, where {describe(taker)} would take it, holds fewer digits"
                )
    return found or None


def decentred(plan: Plan, stays: dict[ir.Node, Reason]) -> dict[ir.Node, Reason] | None:
    """Return the maps that stay, and stay as written: (x - m) / sigma of values far from zero is exact in two steps."""
    changed = [edit.node for edit in plan.edits if is_affine(edit.node) and edit.absorbs and is_centred(edit.node)]
    return {node: plan.stays[node] for node in changed if node not in stays} or None
