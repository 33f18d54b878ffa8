"""Operators that nothing explains and of whose results nothing reaches an output, in any sample.

In front of a Clip that lies at its bounds throughout, or of a Relu that reads nothing above 0, the outputs are the same
whatever stands there (a Cast to bfloat16, a factor of 2), so that no check could have failed by it. The derivatives of
the outputs say it of all operators in one run. What outputs decide on is asked for itself (:mod:`.open_decisions`).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS
from normdeploy.graph.operators.random import has_effect
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import values_read
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.decisive import takes_steps
from normdeploy.verification.checks.open_decisions import shown_by
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.exact_agreement import plural, shortened
from normdeploy.verification.sides.flat_values import Feeds

_EVALUATIONS = 3.0
"""What a run with derivatives costs, in runs without."""


def check_hidden(context: Context) -> list[Check]:
    """Name the operators of the file that no algebra explains and that no output of a sample depends on."""
    report = context.proven
    told = context.failed or context.answered(Question.IDLE, Status.NOT_EXERCISED)  # an idle operator hides others
    if report is None or report.confirmed or told:
        return []
    outputs = [value for value in context.subject.model.graph.outputs if value.dtype in FLOATS]
    shown = set[str]().union(*map(shown_by, outputs))
    left = {row.result: row.node for row in report.open if not row.is_close}
    left = {name: node for name, node in left.items() if name in shown and has_effect(node.outputs[0])}
    ran: set[str] = set()
    for case in context.cases:
        if not left:
            break
        context.effort.spend(_EVALUATIONS, case.family.feeds)
        try:
            reached = _Derivatives(left.values()).of(context, case.family.feeds)
        except GraphError:
            continue  # the runtime takes what is not evaluated here
        ran.update(reached)
        left = {name: node for name, node in left.items() if not reached.get(name, False)}
    hidden = [f"{node.op_type} {str(node.name or name)!r}" for name, node in left.items() if name in ran]
    if not hidden:
        return []
    text = (
        f"no output of {plural(len(context.cases), 'family', 'families')} depends on what is returned by "
        f"{shortened(hidden)}, and no algebra explains it: whatever stood there would have passed; give inputs on "
        "which it shows (data=, --data)"
    )
    return [Check(Question.IDLE, Status.NOT_EXERCISED, text)]


class _Derivatives:
    """Which operators' first results outputs depend on, by derivatives.

    A result reaches what a sum that reads it reaches, though it may be taken away again (x - x).

    Args:
        nodes: the operators.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._at = {str(node.outputs[0].name): _with_sums(node.outputs[0]) for node in nodes}
        self._names = set[str]().union(*self._at.values())
        self._kept: dict[str, Tensor] = {}
        self._graded: set[str] = set()
        self._lost = False

    def of(self, context: Context, feeds: Feeds) -> dict[str, bool]:
        """Return of each result whether an output depends on it; of all that one does where derivatives end somewhere.

        Raises:
            GraphError: the file cannot be evaluated on these inputs.
        """
        with torch.enable_grad():
            found = context.subject.evaluator.run(feeds, hook=self._keep)
            outputs = [made[made.isfinite()] for made in found.values() if made.requires_grad]
            draw = torch.Generator().manual_seed(context.seed)
            signs = [torch.randn(one.shape, generator=draw, dtype=one.dtype) for one in outputs]
            total = sum((torch.dot(one, sign) for one, sign in zip(outputs, signs, strict=True)), torch.zeros(()))
        ran = [name for name in self._at if name in self._kept]
        if self._lost or not total.requires_grad:
            return dict.fromkeys(ran, self._lost)
        given = torch.autograd.grad(total, list(self._kept.values()), allow_unused=True)
        pairs = zip(self._kept, given, strict=True)
        felt = {name for name, one in pairs if one is not None and bool((one != 0).any())}  # NaN is not 0
        return {name: not felt.isdisjoint(self._at[name]) for name in ran}

    def _keep(self, node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        """Make each result that is asked about a tensor of its own, which derivatives are taken by."""
        read = any(value.name in self._graded for value in values_read(node))
        for place, value in enumerate(node.outputs[: len(results)]):
            made, name = results[place], str(value.name)
            if name in self._names and made.is_floating_point():
                made = made.clone() if made.requires_grad else made.detach().clone().requires_grad_(True)
                results[place] = self._kept[name] = made
            if made.requires_grad:
                self._graded.add(name)
            elif read and made.is_floating_point() and not takes_steps(node, value):
                self._lost = True
        return results


def _with_sums(value: ir.Value) -> set[str]:
    """Return the name of a value, and of the sums that read it."""
    sums = {str(node.outputs[0].name) for node, _ in value.uses() if has(node, Trait.ADDS)}
    return {str(value.name), *sums}
