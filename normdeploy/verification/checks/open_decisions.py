"""What outputs decide on (an argmax, a comparison, the best few), where algebra leaves an operator in front of it open.

The output shows such an operator only where a sample's order turns: six logits through bfloat16 and back keep theirs in
nearly every sample, though other rows lose it. So the numbers themselves are compared, by the same criterion as an
output's: those that the file's decisions are taken on against those of the reference's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS
from normdeploy.graph.traits import Trait, has, is_quantizer
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.decisive import in_front, shown_case, shown_cut, takes_steps
from normdeploy.verification.mutation.probes import judged_cut
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.exact_agreement import shortened

_FAMILIES = 3
"""Families on which they are compared."""


def check_open_decisions(context: Context) -> list[Check]:
    """Compare what decisions are taken on, where nothing confirms it for every input."""
    report, reference = context.proven, context.reference.graph
    if report is None or report.confirmed or context.failed or reference is None or context.noisy is None:
        return []
    if any(is_quantizer(node) for node in reference.graph):
        return []  # steps flip in front of it, which :mod:`.grid` judges
    file, open_results = context.subject.model, {row.result for row in report.open}
    named = {str(value.name): value for value in file.graph.outputs}
    its_makers, own_makers = _makers(file.graph), _makers(reference.graph)
    ours, theirs = dict[str, None](), dict[str, None]()
    for output, name in zip(reference.graph.outputs, context.subject.output_names, strict=True):
        of_numbers = output.dtype in FLOATS
        hidden = open_results - shown_by(named[name]) if of_numbers else open_results
        its = [_in_front_of_views(its_makers, value) for value in in_front(file.graph, [named[name]])]
        own = [_in_front_of_views(own_makers, value) for value in in_front(reference.graph, [output])]
        if not _depends(its_makers, name, hidden):
            continue
        if len(own) != len(its) and of_numbers:
            continue  # a mask that is made in another way, of which the numbers tell more than that it was turned
        if len(own) != len(its):
            return [_unseen(shortened([repr(value) for value in its or own]), "the reference decides on other values")]
        ours.update(dict.fromkeys(own))
        theirs.update(dict.fromkeys(its))
    if not theirs or len(ours) != len(theirs):
        return []
    asked = shortened([repr(name) for name in theirs])
    try:
        problems = _problems(context, reference, list(ours), list(theirs))
    except GraphError as error:
        return [_unseen(asked, str(error))]
    return [_unseen(asked, shortened(problems))] if problems else []


def _problems(context: Context, reference: ir.Model, ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    made = shown_cut(context, reference, reference, list(zip(ours, ours, theirs, strict=True)))
    for known in context.cases[:_FAMILIES]:
        problems, _ = judged_cut(context, made, shown_case(context, made, known))
        if problems:
            return problems
    return []


def _unseen(asked: str, why: str) -> Check:
    text = (
        f"an output is a decision on {asked}: no algebra shows what that is, and it is not what the reference decides "
        f"on ({why}); the decisions alone were compared, of which samples turn few: return these numbers, too, or take "
        "out what changes them"
    )
    return Check(Question.DECISIONS, Status.NOT_EXERCISED, text)


def shown_by(output: ir.Value) -> set[str]:
    """Return the names of values that reach an output of numbers on some way without a decision."""
    queue, seen = [output], {output}
    for value in queue:
        node = value.producer()
        passes = not takes_steps(node, value) or has(node, Trait.HOMOGENEOUS)  # TopK, Unique
        before = [v for v in node.inputs if v is not None and v not in seen] if node is not None and passes else []
        queue += before
        seen.update(before)
    return {str(value.name) for value in seen}


def _makers(graph: ir.Graph) -> dict[str, ir.Node]:
    """Return the operator that computes each value, by the value's name."""
    return {str(value.name): node for node in graph for value in node.outputs}


def _in_front_of_views(made: Mapping[str, ir.Node], name: str) -> str:
    """Return the name of the operator's result whose elements another holds in their order, under whatever shape."""
    while has(node := made.get(name), Trait.KEEPS_ORDER):
        viewed = node.inputs[0]
        if viewed is None or str(viewed.name) not in made:
            break
        name = str(viewed.name)
    return name


def _depends(made: Mapping[str, ir.Node], name: str, results: Collection[str]) -> bool:
    """Tell whether a value is computed through one of some results."""
    queue = [made[name]] if name in made else []
    seen = set(queue)
    for node in queue:
        if any(str(value.name) in results for value in node.outputs):
            return True
        before = {made.get(str(value.name)) for value in node.inputs if value is not None}
        queue += [producer for producer in before if producer is not None and producer not in seen]
        seen.update(producer for producer in before if producer is not None)
    return False
