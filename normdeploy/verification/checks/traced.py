r"""The float64 chain from the eager model to the stored numbers.

::

    eager, float64 --(1)-- traced graph, float64 --(2)-- numbers in the file

1. The trace stores the model's Python constants (an epsilon, a scale) as float32, and nothing else changes: the bound
   is the spread of float64 runs in which only these constants move by one rounding. Samples show it, here.
2. The file computes what the traced graph computes, each of its numbers rounded once: algebra shows it for every input
   (:mod:`normdeploy.verification.derivation.checker`).

Where both hold, an error far below float32's rounding of the whole network would have shown: in the file by algebra,
and between module and trace by as much as the two are seen to agree.
"""

from __future__ import annotations

from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.float64_chain import Links
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.moved_constants import MovedConstants
from normdeploy.verification.mutation.followed import follow_after_all
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Ratios
from normdeploy.verification.sides.two_sides import EagerReference
from normdeploy.verification.trace_agreement import hold_trace

_ALWAYS = 2
"""Families on which the two are compared whatever that costs."""

SHARE = 0.5
"""Share of a level's work after which they are compared on no further family."""


def traced_by_file(context: Context) -> Links | None:
    """Say that the trace is the module where the file's runs show it; None where the graph has to be evaluated.

    The file is confirmed to be the traced graph for every input, so that its runs under the deployed settings hold the
    trace against the module as well, to rounding; what is finer was compared number by number
    (:mod:`normdeploy.verification.mutation.named_sites`).
    """
    if context.named is None or not context.known_by_algebra or not isinstance(context.reference, EagerReference):
        return None
    for case in context.cases:
        try:
            outputs = context.subject.run(case.family.feeds, context.settings[0])
        except GraphError:
            return None
        if not all(result.holds for result in hold_against(case, outputs, refined=False)):
            return None
    context.leave_out(
        "the traced graph against the module in float64 (it was to rounding, through the file, and the numbers of its "
        "norms against those of the module's calls)"
    )
    text = "the file, which is the traced graph for every input, is the module to rounding"
    return Links((Check(Question.TRACED, Status.PASS, text),), hold=True)


def check_traced(context: Context) -> Links:
    """Hold the traced graph against the module; the chain is used by the sensitivity check only if both links hold."""
    follow_after_all(context)
    if context.evaluator is None:
        return Links()
    if not context.reference.has_truth:
        context.not_checked.append("the traced graph against the module in float64 (the module does not run in it)")
        return Links(traced=False)
    constants = MovedConstants(context)
    worst = 0.0
    left: list[str] = []
    for number, case in enumerate(context.cases):
        if number >= _ALWAYS and not context.effort.affords(SHARE):
            left.append(case.family.name)
            continue
        context.tell("traced", number / len(context.cases))
        try:
            worst = max(worst, hold_trace(context, case, constants))
        except GraphError as error:
            text = (
                f"the float64 chain on {case.family.name!r}: the reference's graph cannot be evaluated there ({error})"
            )
            context.not_checked.append(text)
    if left:
        context.leave_out(f"the traced graph against the module in float64 on {', '.join(left)}")
    tight = worst <= 1
    check = Check(
        Question.TRACED,
        Status.PASS if tight else Status.NOTE,
        "the traced graph is the reference in float64, but for the rounding of its constants"
        if tight
        else f"the traced graph differs from eager float64 by {worst:.3g} times what rounding its constants explains; "
        "float32's bound judges alone",
        Ratios(worst),
    )
    report = context.proven
    proven, nearly = (False, False) if report is None else (report.confirmed, report.nearly)
    return Links((check,), traced=tight, hold=tight and proven, nearly=tight and nearly and not proven)
