"""One run of the file held against its case, and a measurement of each float output."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from normdeploy.array_types import Array, Floats
from normdeploy.errors import GraphError
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import NOISY, SINGLE
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.flips import FlipRecord
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.judging.outputs import OutputResult, hold_against
from normdeploy.verification.judging.parts import InParts, held_in_parts
from normdeploy.verification.judging.precision import drop_in_words
from normdeploy.verification.moved_constants import MovedConstants
from normdeploy.verification.record.answers import HISTOGRAM_EDGES, Check, Measurement, Question, Status
from normdeploy.verification.sides.exact_agreement import is_float, shortened, signature_problems
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.grids import quantizes
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.trace_agreement import hold_trace

_CUTS = 1 + 2 * (2 * SINGLE + 1 + 4 * NOISY)
"""Evaluations for holding a run in parts: the whole, and two cuts, each part in both precisions and with noise."""

AMPLIFIED = 1024.0
"""Of a unit of rounding, relative to the output: what a network makes of rounding where its outputs no longer tell one
rounding of a weight from a damage. Networks that are not steep stay below 100."""


@dataclass(frozen=True)
class Ran:
    """A run whose outputs are judged in another form. Args: feeds: what it was run on. outputs: what came out."""

    feeds: Feeds
    outputs: Sequence[Array]


def judge_outputs(
    context: Context,
    case: Case,
    outputs: list[Array],
    setting: Setting,
    *,
    name_precision: bool = True,
    ran: Ran | None = None,
    part: FlipRecord | None = None,
) -> tuple[list[str], float]:
    """Hold one run's outputs against its case; record a measurement per float output.

    Where rounding does not explain an output of a file that is confirmed for every input, or but for last digits of its
    numbers, the run is held part by part: what holds there is the network's own amplification of rounding, and counts
    as such from then on (:mod:`normdeploy.verification.judging.parts`).

    Args:
        setting: how the file was run.
        name_precision: say how many bits of mantissa explain the error (where the logic is known to hold).
        ran: the run, where it was of other inputs than the case's and ``outputs`` were made of its own.
        part: what flipped of the part of a file that was run, where it was a part; it is not cut again.

    Returns:
        problems in sentences, and the worst ratio of error to bound of what is not held in parts.
    """
    problems: list[str] = []
    worst = 0.0
    counted = signature_problems(case.eager, outputs, case.names)
    if len(outputs) != len(case.truth):
        return counted, float("inf")
    flips = part or context.flips
    may_be_cut = part is None and (context.links.hold or context.links.nearly) and not context.failed
    refined = not may_be_cut or quantizes(context.subject.evaluator)  # flips are told apart by all that S explains
    results, parts = hold_against(case, outputs, refined=refined), InParts(False)
    results = [r for r in results if not flips.explain(case, r, outputs, setting)]
    if may_be_cut and not all(result.holds for result in results):
        if not any(result.problems for result in results):
            beyond = {result.index for result in results if not result.holds}
            parts = _in_parts(context, case, ran or Ran(case.family.feeds, outputs), setting, beyond)
        if not parts.holds and not refined:  # what measures S anew costs more than two cuts
            known = {result.index for result in results}
            results = [result for result in hold_against(case, outputs) if result.index in known]
    for result in results:
        problems += [f"{case.family.name}: {text}" for text in result.problems]
        if result.judgement is None:
            continue
        measurement = _measure(case, result, outputs[result.index], str(setting))
        if not result.judgement.ratio <= 1 and parts.holds:
            measurement = replace(measurement, in_parts=parts.worst)
            case.rounding.admit(result.index, _error(case, result.index, outputs[result.index]))
        else:
            worst = max(worst, result.judgement.ratio)
        context.measurements.append(measurement)
        if not measurement.holds:
            text = (
                f"{case.family.name}: output {case.names[result.index]!r} is {result.judgement.ratio:.3g} times the "
                f"bound ({result.judgement.kind} over {result.judgement.block}, worst at "
                f"{list(result.judgement.worst)}: error {measurement.max_error:.3g} of values up to "
                f"{measurement.max_truth:.3g})"
            )
            words = (
                drop_in_words(case, result.index, outputs[result.index], context.file_noise) if name_precision else ""
            )
            problems.append("; ".join(filter(None, (text, words, parts.why))))
    return problems, worst


def check_case(context: Context, case: Case) -> list[Check]:
    """Hold the file against one more case, in float64 and as it is deployed."""
    feeds = case.family.feeds
    try:
        problems, _ = logic_problems(case, context.subject.logic(feeds))
        if problems:
            return [Check(Question.LOGIC, Status.FAIL, shortened(problems))]
        for setting in context.settings:
            problems, _ = judge_outputs(context, case, context.subject.run(feeds, setting), setting)
            if problems:
                return [Check(Question.ROUNDING, Status.FAIL, f"under {setting}: {shortened(problems)}")]
    except GraphError as error:
        return [Check(Question.ROUNDING, Status.FAIL, f"{case.family.name}: {error}")]
    return []


def _in_parts(context: Context, case: Case, ran: Ran, setting: Setting, judged: Set[int]) -> InParts:
    """Hold a run part by part, where the file in float64 is the reference on these very inputs.

    It is asked of a file that is confirmed for every input, so what is left of a difference is what the rounding of
    stored numbers becomes: as large as eager's own error where the network amplifies, whatever a few runs with noise
    met. The limit that is kept tells of a file that was confirmed wrongly. Where rounding is seen to be amplified so
    far that outputs tell nothing, that of stored numbers may be, too; there the traced graph, which has the module's
    own, is held against the module in the file's place.
    """
    context.effort.spend(_CUTS, case.family.feeds)
    try:
        wrong, _ = logic_problems(case, context.subject.logic(case.family.feeds), limit=context.links.limit)
        if wrong and not (_amplifies(case) and _traced_there(context, case)):
            return InParts(False, why="the file in float64 is not the reference there")
    except GraphError as error:
        return InParts(False, why=f"the file cannot be evaluated in float64 on it ({error})")
    return held_in_parts(context.subject, ran.feeds, ran.outputs, setting, seed=context.seed, judged=judged)


def _amplifies(case: Case) -> bool:
    """Tell whether noise, or eager's rounding, is amplified by `AMPLIFIED` in some output."""
    for index, truth in enumerate(case.truth):
        if not is_float(truth):
            continue
        bounds = case.bounds(index)
        seen = max(rms(bounds.eager[bounds.keep]), rms(bounds.spread[bounds.keep]))
        if seen > AMPLIFIED * bounds.roundoff * rms(bounds.truth[bounds.keep]):
            return True
    return False


def _traced_there(context: Context, case: Case) -> bool:
    """Tell whether the traced graph is the module in float64 on a family: it holds on those that were compared."""
    return case.chain is not None or hold_trace(context, case, MovedConstants(context)) <= 1


def _error(case: Case, index: int, output: Array) -> Floats:
    with np.errstate(invalid="ignore"):  # an infinity less itself says nothing
        return np.asarray(np.abs(np.asarray(output, np.float64) - np.asarray(case.truth[index], np.float64)))


def _measure(case: Case, result: OutputResult, output: Array, setting: str) -> Measurement:
    i = result.index
    assert result.judgement is not None
    bounds = case.bounds(i, spread=False)
    keep = bounds.keep & np.isfinite(np.asarray(output, np.float64))
    y = bounds.truth[keep]
    error = np.abs(np.asarray(output, np.float64)[keep] - y)
    eager = bounds.eager[keep]
    scale = bounds.roundoff * rms(y) or bounds.floor
    return Measurement(
        output=case.names[i],
        family=case.family.name,
        setting=setting,
        ratio=result.judgement.ratio,
        rms_error=rms(error),
        rms_eager=rms(eager),
        rms_spread=rms(bounds.spread[keep]),
        rms_truth=rms(y),
        max_error=float(error.max(initial=0.0)),
        max_eager=float(eager.max(initial=0.0)),
        max_truth=float(np.abs(y).max(initial=0.0)),
        worst=result.judgement.worst,
        histogram=(_histogram(error / scale), _histogram(eager / scale)),
    )


def _histogram(x: Array) -> tuple[int, ...]:
    edges = np.asarray(HISTOGRAM_EDGES)
    logs = np.log10(np.maximum(x, 10.0 ** edges[0]))
    counts, _ = np.histogram(np.clip(logs, edges[0], edges[-1]), bins=edges)
    return tuple(int(n) for n in counts)
