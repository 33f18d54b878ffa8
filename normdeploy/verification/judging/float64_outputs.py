"""Float64 outputs of rounded weights held against the truth: no runtime takes part, the bound is tighter."""

from __future__ import annotations

from dataclasses import replace

from normdeploy.array_types import Array
from normdeploy.verification.bounds.criteria import CONSTANTS
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.outputs import hold_against

LOGIC = replace(CONSTANTS, rms=3.0, peak=6.0)
"""Constants for float64 runs of rounded weights: there is no runtime to allow for."""


def logic_problems(case: Case, outputs: list[Array], *, limit: float = 1.0) -> tuple[list[str], float]:
    """Hold float64 outputs against the truth; return problems and the worst ratio.

    Args:
        limit: the largest ratio allowed. Above 1, all links hold: what is left is the rounding of each stored number,
            by proof, and the spread of a few random roundings is a sanity check only.
    """
    if len(outputs) != len(case.truth):
        return [f"the file returns {len(outputs)} outputs; the reference returns {len(case.truth)}"], float("inf")
    eager = case.noisy is None
    judged = case if eager else case.by(LOGIC)
    problems: list[str] = []
    worst = 0.0
    for result in hold_against(judged, outputs, eager=eager or limit > 1, exact=False):
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
