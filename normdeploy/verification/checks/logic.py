"""Logic: the emitted graph itself in float64 against the reference in float64.

The file's rounded weights are taken as exact. Each is off by half a unit in the last place, which is less than one
rounding of each operator's result, so the noise model's spread bounds the difference. Sharper questions, where they
can be asked, are in :mod:`normdeploy.verification.derivation.links`.
"""

from __future__ import annotations

from dataclasses import replace

from normdeploy.errors import GraphError
from normdeploy.verification.bounds.criteria import CONSTANTS
from normdeploy.verification.cases import Case, hold_against
from normdeploy.verification.context import Context
from normdeploy.verification.derivation.links import check_links
from normdeploy.verification.sides.structure import plural, shortened
from normdeploy.verification.sides.values import Array

LOGIC = replace(CONSTANTS, rms=3.0, peak=6.0)
"""Constants for float64 runs of rounded weights: there is no runtime to allow for."""

_SAMPLED = 1
"""Families on which the file is evaluated in float64 where every link holds: the links say the same of all others."""

_CHAIN_LIMIT = 8.0
"""Ratio up to which the file as a whole may differ where each of its numbers is known to be rounded once."""


def check_logic(context: Context) -> None:
    """Check the links of the float64 chain, and compare the file with the truth as a whole."""
    known = len(context.checks)
    check_links(context)
    links, context.checks[known:] = context.checks[known:], []
    _file_against_truth(context)
    context.checks += links  # the whole is read first


def _file_against_truth(context: Context) -> None:
    problems: list[str] = []
    worst = 0.0
    proven = bool(context.facts.get("chain"))
    cases = context.cases[:_SAMPLED] if proven and not context.level.measured else context.cases
    for number, case in enumerate(cases):
        context.tell("logic", number / len(cases))
        context.budget.spend(1, case.family.feeds)
        try:
            outputs = context.subject.logic(case.family.feeds)
        except GraphError as error:
            context.answer("logic", "weak", f"the file cannot be evaluated in float64: {error}")
            context.not_checked.append("logic of the file in float64")
            return
        found, ratio = logic_problems(case, outputs, chain=proven)
        worst = max(worst, ratio)
        problems += found
    if problems:
        context.answer("logic", "fail", shortened(problems), worst_ratio=worst)
    elif context.evaluator is None:
        text = "agrees in float64, judged by eager's error and a float32 ensemble of it"
        context.answer("logic", "weak", text, worst_ratio=worst)
    else:
        text = (
            f"the file in float64 agrees with the reference in float64 on {plural(len(cases), 'family', 'families')} "
            f"(at most {worst:.2f} of what rounding its weights explains)"
        )
        if len(cases) < len(context.cases):
            text += "; on the others because it is the recomputed graph, number by number"
        context.answer("logic", "pass", text, worst_ratio=worst)


def logic_problems(case: Case, outputs: list[Array], *, chain: bool = False) -> tuple[list[str], float]:
    """Hold float64 outputs against the truth; return problems and the worst ratio.

    Args:
        chain: all links hold: what is left is the rounding of each stored number, by proof, and the spread of a few
            random roundings is a sanity check only.
    """
    limit = _CHAIN_LIMIT if chain else 1.0
    if len(outputs) != len(case.truth):
        return [f"the file returns {len(outputs)} outputs; the reference returns {len(case.truth)}"], float("inf")
    eager = case.noisy is None
    judged = case if eager else replace(case, constants=LOGIC)
    problems: list[str] = []
    worst = 0.0
    for result in hold_against(judged, outputs, eager=eager or chain, exact=False):
        problems += [f"{case.family.name}: {text}" for text in result.problems]
        if result.judgement is not None:
            worst = max(worst, result.judgement.ratio)
            if not result.judgement.ratio <= limit:
                problems.append(
                    f"{case.family.name}: output {case.names[result.index]!r} differs in float64 by "
                    f"{result.judgement.ratio:.3g} times what rounding the weights explains "
                    f"(worst at {list(result.judgement.worst)})"
                )
    return problems, worst
