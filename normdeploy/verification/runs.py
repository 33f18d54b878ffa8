"""One run of the file held against its case, and a measurement of each float output."""

from __future__ import annotations

import numpy as np

from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.cases import Case
from normdeploy.verification.context import Context
from normdeploy.verification.judging.outputs import OutputResult, hold_against
from normdeploy.verification.judging.precision import drop_in_words
from normdeploy.verification.record.answers import HISTOGRAM_EDGES, Measurement
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.structure import signature_problems
from normdeploy.verification.sides.values import Array


def judge_outputs(
    context: Context, case: Case, outputs: list[Array], setting: Setting | str, *, name_precision: bool = True
) -> tuple[list[str], float]:
    """Hold one run's outputs against its case; record a measurement per float output.

    Args:
        setting: how the file was run; its name alone where it is another file that was (a part of it), whose outputs
            lie on no grid of the file's (:mod:`normdeploy.verification.checks.grid`).
        name_precision: say how many bits of mantissa explain the error (where the logic is known to hold).

    Returns:
        problems in sentences, and the worst ratio of error to bound.
    """
    problems: list[str] = []
    worst = 0.0
    counted = signature_problems(case.eager, outputs, case.names)
    if len(outputs) != len(case.truth):
        return counted, float("inf")
    for result in hold_against(case, outputs):
        if isinstance(setting, Setting) and context.flips.explain(case, result, outputs, setting):
            continue
        problems += [f"{case.family.name}: {text}" for text in result.problems]
        if result.judgement is None:
            continue
        worst = max(worst, result.judgement.ratio)
        measurement = _measure(case, result, outputs[result.index], str(setting))
        context.measurements.append(measurement)
        if not result.judgement.ratio <= 1:
            text = (
                f"{case.family.name}: output {case.names[result.index]!r} is {result.judgement.ratio:.3g} times the "
                f"bound ({result.judgement.kind} over {result.judgement.block}, worst at "
                f"{list(result.judgement.worst)}: error {measurement.max_error:.3g} of values up to "
                f"{measurement.max_truth:.3g})"
            )
            words = (
                drop_in_words(case, result.index, outputs[result.index], context.file_noise) if name_precision else ""
            )
            problems.append(f"{text}; {words}" if words else text)
    return problems, worst


def _measure(case: Case, result: OutputResult, output: Array, setting: str) -> Measurement:
    i = result.index
    assert result.judgement is not None
    bounds = case.bounds(i, spread=case.rounding.measured)
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
