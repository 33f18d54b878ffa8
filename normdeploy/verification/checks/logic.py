"""Logic: the emitted graph itself in float64 against the reference in float64.

The file's rounded weights are taken as exact. Each is off by half a unit in the last place, which is less than one
rounding of each operator's result, so the noise model's spread bounds the difference. Sharper questions, where they
can be asked, are in :mod:`normdeploy.verification.checks.traced`.
"""

from __future__ import annotations

from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.traced import check_traced, traced_by_file
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Ratios
from normdeploy.verification.sides.exact_agreement import plural, shortened

_SAMPLED = 1
"""Families on which the file is evaluated in float64 where the float64 chain holds: it says the same of all others."""


def check_logic(context: Context) -> list[Check]:
    """Check the float64 chain, and compare the file with the truth as a whole."""
    context.links = traced_by_file(context) or check_traced(context)
    return [_file_against_truth(context), *context.links.checks]  # the whole is read first


def _file_against_truth(context: Context) -> Check:
    problems: list[str] = []
    worst = 0.0
    proven = context.links.hold and context.proven is not None and context.proven.confirmed
    if proven and context.known_by_algebra:
        text = "confirmed for every input, number by number: the file is the traced graph, so it was not run in float64"
        return Check(Question.LOGIC, Status.PASS, text)
    cases = context.cases[:_SAMPLED] if proven and not context.level.measured else context.cases
    for number, case in enumerate(cases):
        context.tell("logic", number / len(cases))
        context.effort.spend(1, case.family.feeds)
        try:
            outputs = context.subject.logic(case.family.feeds)
        except GraphError as error:
            context.not_checked.append("logic of the file in float64")
            if problems:
                break
            return Check(Question.LOGIC, Status.WEAK, f"the file cannot be evaluated in float64: {error}")
        found, ratio = logic_problems(case, outputs, limit=context.links.limit)
        worst = max(worst, ratio)
        problems += found
        context.wrong_in_float64 |= bool(found)
    measured = Ratios(worst)
    if problems:
        return Check(Question.LOGIC, Status.FAIL, shortened(problems), measured)
    if context.evaluator is None:
        text = "agrees in float64, judged by eager's error and a float32 ensemble of it"
        return Check(Question.LOGIC, Status.WEAK, text, measured)
    text = (
        f"the file in float64 agrees with the reference in float64 on {plural(len(cases), 'family', 'families')} "
        f"(at most {worst:.2f} of what rounding its weights explains)"
    )
    if len(cases) < len(context.cases):
        text += "; on the others because algebra shows it for every input"
    return Check(Question.LOGIC, Status.PASS, text, measured)
