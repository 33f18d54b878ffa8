"""Operators that nothing explains and that did nothing in any sample: what they do otherwise was not seen.

A bound of 100000, a Where that always takes one side, a Relu that adds 0 to all that is below 100000, a cast to a type
that holds every number that was fed: the file computes the same with and without, as far as samples go, so that no
check could have failed by them. One that only looks at indices of a table, or at a mask, is tried on every one.
Operators of the reference that the file is not known to have are asked the same: a file without a bound that no sample
reaches is right on all of them. Families that the level leaves out are judged where they wake such an operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError, InputError
from normdeploy.graph import Evaluator, constant_tensor
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.reference_runs import add_case
from normdeploy.verification.derivation.side.competing_constants import fills, own_fills
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.runs import check_case
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.clip_bounds import clip_bounds, extreme_bound, own_bounds
from normdeploy.verification.sides.exact_agreement import plural, shortened
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator
from normdeploy.verification.sides.taken_parts import BRANCHES, own_parts, turns_of
from normdeploy.verification.sides.watch import NEGATED, Watch, same_tensor


def check_idle(context: Context) -> list[Check]:
    """Name the operators of file and reference that no sample shows at work, and that nothing explains."""
    if context.failed:
        return []
    of_file, of_reference = context.subject.watch, _watched_reference(context)
    wrong = _wake(context, [(of_file, context.subject.evaluator), (of_reference, context.evaluator)])
    if wrong:
        return wrong
    ours = _idle(context, of_file, context.subject.evaluator)
    theirs = _idle(context, of_reference, context.evaluator)
    why = "no algebra explains it: what the file does otherwise" if ours else ""
    why = why or "nothing of the file is known to stand for it: what the file does where it acts"
    watch = of_file if ours else of_reference
    if watch is None or not ours + theirs:
        return []
    told = shortened([*ours, *(f"the reference's {text}" for text in theirs)])
    text = f"{told} in all {plural(watch.runs, 'run')}, and {why} was not seen; give inputs on which it acts"
    text += " (data=, --data)"
    return [Check(Question.IDLE, Status.NOT_EXERCISED, text)]


def _watched_reference(context: Context) -> Watch | None:
    """Run the reference's graph on the families until every operator that the file may lack was seen at work."""
    report = context.proven
    names = frozenset(report.lost if report is not None else ())
    if report is None or not names or context.evaluator is None:
        return None
    others = list(nodes_in(context.subject.model.graph))
    lost = [node for node in nodes_in(context.evaluator.graph) if node.outputs[0].name in names]
    ends = {**own_bounds(lost, others), **own_fills(lost, others)}
    watch = Watch(names, {**ends, **own_parts(lost, others, report.bodies_of_source)})
    for case in context.cases:
        if watch.acted == names:
            break
        context.effort.spend(1, case.family.feeds)
        _sees(watch, context.evaluator, case.family.feeds)  # the module takes what its graph does not
    return watch


def _sees(watch: Watch, evaluator: Evaluator, feeds: Feeds) -> bool:
    """Run a graph before a watch's eyes; tell whether it ran to its end."""
    watch.begin(feeds)
    try:
        run_evaluator(evaluator, feeds, hook=watch, entered=watch.enter)
    except GraphError:
        return False
    return True


def _wake(context: Context, watched: Sequence[tuple[Watch | None, Evaluator | None]]) -> list[Check]:
    """Judge families that the level left out, as rows masked whole, if an operator that did nothing yet acts on them.

    Returns:
        what is wrong there.
    """
    sides = [(watch, graph) for watch, graph in watched if watch is not None and graph is not None]
    for family in list(context.waiting):
        if not any(watch.idle for watch, _ in sides):
            break
        acts = False
        for watch, graph in sides:
            context.effort.spend(1, family.feeds)
            probe = watch.copied()
            acts |= _sees(probe, graph, family.feeds) and len(probe.idle) < len(watch.idle)
        known = len(context.cases)
        if acts:
            context.waiting.remove(family)
            add_case(context, family)
        for case in context.cases[known:]:
            wrong = check_case(context, case)
            if wrong:
                return wrong
            for watch, graph in sides:
                _sees(watch, graph, family.feeds)
    return []


def _idle(context: Context, watch: Watch | None, evaluator: Evaluator | None) -> list[str]:
    """Say what the watched operators did that showed nothing."""
    if watch is None or evaluator is None:
        return []
    return [
        f"{node.op_type} {str(node.name or node.outputs[0].name)!r} {_what(watch, node)}"
        for node in watch.idle.values()
        if not _tried_on_every_number(context, node, evaluator)
    ]


def _what(watch: Watch, node: ir.Node) -> str:
    name = str(node.outputs[0].name)
    left = [end for end in watch.ends.get(name, ()) if end not in watch.reached[name]]
    if node.op_type == "Gather":
        rows = shortened([f"row {row}" for row in left])
        return f"read its table, which the reference does not have, and never {rows}"
    if name in watch.ends and (competing := fills(node)):
        never = shortened([f"{competing[place]:g}" for place in left])
        return f"takes of {never} as well, which the other graph does not, and never took that"
    bound = extreme_bound(node) if name in watch.ends else []
    if bound and not watch.same.get(name) and watch.numbers.get(name) is None:
        return f"cuts at {bound[0][1]:g}, where the other graph does not, and read nothing near it"
    if name in watch.ends and node.op_type == "Clip":
        bounds = shortened([f"{bound:g}" for side, bound in clip_bounds(node) if side in left])
        return f"cuts at {bounds}, where the other graph does not, and read nothing beyond"
    if name in watch.ends and node.op_type == "If":
        return f"never took its {shortened([BRANCHES[taken] for taken in left])}"
    if name in watch.ends and node.op_type == "Loop":
        return f"never ended by its limit of {turns_of(node)} turns, which the other graph does not have"
    if name in watch.ends and linear_of(node) is not None:
        unmet = shortened([f"channel {channel}" for channel in left])
        return f"has weights that are not the reference's, and read nothing but 0 in {unmet}"
    if name in watch.ends and not bound:
        return "cuts elsewhere than any quantizer of the reference, and never reached both ends"
    if has(node, Trait.COMPARES) or _is_truth(node):
        return "gave one answer"
    number = watch.numbers.get(name)
    if number is not None and has(node, Trait.ADDS):
        return f"added {number:.3g} to nothing near 0"
    if number is None and watch.same.get(name) == {NEGATED}:
        return "returned the negative of what it read"
    return "returned what it read" if number is None else f"returned {number:g} everywhere"


def _is_truth(node: ir.Node) -> bool:
    return node.outputs[0].dtype is ir.DataType.BOOL


def _tried_on_every_number(context: Context, node: ir.Node, evaluator: Evaluator) -> bool:
    """Tell whether an operator that only looks at indices of a table, or at a mask, returns each of them as it is."""
    read = node.inputs[0]
    spec = _input_behind(context, node)
    if read is None or read.name is None or spec is None or has(node, Trait.COMPARES) or _is_truth(node):
        return False
    if node.op_type == "Mod" and not spec.table:  # what has a remainder is no mask, whatever the example holds
        return False
    every = np.arange(spec.table or 2).astype(spec.dtype).reshape(-1, *(1,) * (len(spec.shape) - 1))
    feeds = {**context.cases[0].family.feeds, spec.name: every}
    name = str(node.outputs[0].name)
    try:
        found = evaluator.run(feeds, fetch=[read.name, name])
    except (GraphError, InputError):
        return False
    return same_tensor(found[read.name], found[name])


def _input_behind(context: Context, node: ir.Node) -> InputRange | None:
    """Return the indices, or the mask, that an operator alone depends on, place by place; None where it is no such."""
    specs = {spec.name: spec for spec in context.specs}
    found: set[str] = set()
    queue = [node]
    for one in queue:
        if not has(one, Trait.POINTWISE):
            return None
        for value in one.inputs:
            if value is None or constant_tensor(value) is not None:
                continue
            producer = value.producer()
            if producer is not None:
                queue.append(producer)
            else:
                found.add(str(value.name))
    spec = specs.get(next(iter(found))) if len(found) == 1 else None
    return spec if spec is not None and (spec.table or spec.is_mask) and not spec.is_float else None
