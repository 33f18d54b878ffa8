"""Sites that no input reaches: queries that a decoder learns, positions that follow from sizes.

What such a site reads is one value, whatever is fed. So what a mutant does there is done: either it changes something
that the rest of the network reads, or no input shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from normdeploy.graph import Evaluator
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.verification.check_context import Context
from normdeploy.verification.mutation.harmless import change_in_roundoffs
from normdeploy.verification.mutation.rerun import CleanRun, Target
from normdeploy.verification.sides.flat_values import Feeds

_PROOF = (
    "undetectable and harmless here: no input reaches the site, and what the rest of the network reads of it changes "
    "by at most {:.2g} u"
)


def unfed(graph: ir.Graph) -> set[ir.Value]:
    """Return the computed values of a graph that are the same whatever is fed: from constants and sizes alone."""
    return {value for node in fixed_nodes(graph).by_sizes for value in node.outputs}


def prove_unfed(context: Context, targets: Sequence[Target]) -> None:
    """Find the survivors at sites that no input reaches which change nothing that the rest of the network reads.

    Args:
        targets: survivors; those that are proven get their report.
    """
    cases = {tuple(tuple(feed.shape) for feed in case.family.feeds.values()): case for case in reversed(context.cases)}
    for evaluator in dict.fromkeys(t.evaluator for t in targets):
        known = unfed(evaluator.graph)
        values = {str(v.name): v for v in known}
        mine = [t for t in targets if t.evaluator is evaluator and not t.site.inner and t.site.output in values]
        read = [str(v.name) for v in known if v.is_graph_output() or any(n not in known for n in _results(v))]
        worst = [0.0 for _ in mine]
        for case in cases.values() if mine else []:  # one of each size: the values may follow from it
            clean = CleanRun(evaluator, case, [t.site for t in mine])
            right = _run(evaluator, case.family.feeds, read)
            for at, target in enumerate(mine):
                with torch.no_grad():
                    wrong = target.mutant.apply(clean.inputs(target.site))
                moved = _run(evaluator, case.family.feeds, read, {target.site.output: wrong})
                changes = (change_in_roundoffs(right[name], moved[name], case.roundoff) for name in read)
                worst[at] = max(worst[at], *changes, 0.0)
        for target, change in zip(mine, worst, strict=True):
            if change <= 1:
                target.spare(_PROOF.format(change))


def _results(value: ir.Value) -> list[ir.Value]:
    """Return what is computed from a value, and not from its sizes alone."""
    return [v for node, _ in value.uses() if node.op_type not in ("Shape", "Size") for v in node.outputs]


def _run(
    evaluator: Evaluator, feeds: Feeds, wanted: Sequence[str], replace: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return evaluator.run(dict(feeds), replace=replace or {}, fetch=list(wanted))
