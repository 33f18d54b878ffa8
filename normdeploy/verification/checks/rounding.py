"""Rounding: onnxruntime's outputs in the file's precision, at every optimization level and provider asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.bounds.precision import drop_in_words
from normdeploy.verification.cases import Case, OutputResult, hold_against
from normdeploy.verification.checks.grid import flips_of
from normdeploy.verification.context import Context
from normdeploy.verification.record.verdict import HISTOGRAM_EDGES, Measurement
from normdeploy.verification.sides.sessions import LEVELS, Setting
from normdeploy.verification.sides.structure import is_float, shortened, signature_problems
from normdeploy.verification.sides.values import Array


def check_rounding(context: Context) -> None:
    """Run every case under the deployed settings, and the first ones at every optimization level."""
    problems: dict[str, list[str]] = {}
    tried: list[str] = []
    worst = 0.0
    total = 0
    logic_holds = any(check.name == "logic" and check.status == "pass" for check in context.checks)
    for setting, cases in _plan(context):
        tried.append(str(setting))
        for case in cases:
            try:
                outputs = context.subject.run(case.family.feeds, setting)
            except GraphError as error:
                problems.setdefault(str(setting), []).append(f"{case.family.name}: {error}")
                break
            total += 1
            found, ratio = judge_outputs(context, case, outputs, setting, name_precision=logic_holds)
            worst = max(worst, ratio)
            if found:
                problems.setdefault(str(setting), []).extend(found)
        if setting not in context.settings:
            context.subject.close(setting)
    if problems:
        everywhere = set(problems) == set(tried) and len(tried) > 1
        where = "under every setting" if everywhere else "under " + "; ".join(problems)
        first = next(iter(problems.values()))
        context.answer("rounding", "fail", f"{where}: {shortened(first)}", settings=list(problems), worst_ratio=worst)
    elif context.evaluator is None:
        context.answer(
            "rounding", "weak", "no graph of the reference to measure rounding on; eager's error alone judges"
        )
    else:
        context.answer(
            "rounding",
            "pass",
            f"{total} runs, error at most {worst:.2f} of what rounding explains",
            worst_ratio=worst,
            runs=total,
        )


def check_decided(context: Context) -> None:
    """Say which outputs hang on ties too much to be judged, and in how many families; in most of them is too many."""
    for i, name in enumerate(context.subject.output_names):
        families = [case.family.name for case in context.cases if i in case.found_undecided]
        if not families:
            continue
        text = (
            f"output {name!r} hangs on decisions within rounding (equal scores, margins of zero) in "
            f"{len(families)} of {len(context.cases)} input families and is not judged there"
        )
        if 2 * len(families) > len(context.cases):
            context.answer("decisions", "not-exercised", f"{text}: give data on which it decides (data=, --data)")
        else:
            context.not_checked.append(f"{text} ({', '.join(families)})")


def check_finite(context: Context) -> None:
    """Say which outputs and stored weights are not numbers: NaN equals NaN, and nothing would have been compared."""
    bad = [
        f"output {name!r} of the reference is NaN or infinite on every input"
        for i, name in enumerate(context.subject.output_names)
        if all(is_float(c.truth[i]) and c.truth[i].size and not np.isfinite(c.truth[i]).any() for c in context.cases)
    ]
    for name, value in context.subject.model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.size < 2 or not tensor.dtype.is_floating_point():
            continue
        nan = int(np.isnan(np.asarray(tensor.numpy(), np.float32)).sum())
        if nan:
            bad.append(f"weight {name!r} is NaN in {nan} of {tensor.size} entries")
    if bad:
        remedy = "what depends on it cannot be compared: load weights that are numbers"
        context.answer("finite", "not-exercised", f"{shortened(bad)}; {remedy}")


def _plan(context: Context) -> list[tuple[Setting, list[Case]]]:
    """Return every deployed setting with all cases, then its other optimization levels with the telling ones."""
    plan = [(setting, context.cases) for setting in context.settings]
    telling = [c for c in context.cases if c.family.user or c.family.name == "normal"] or context.cases[:1]
    if context.level.name == "thorough":
        telling = context.cases
    for setting in context.settings:
        for name in context.level.optimization:
            other = replace(setting, level=name)
            if name in LEVELS and other not in context.settings:
                plan.append((other, telling))
    return plan


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
        if isinstance(setting, Setting) and flips_of(context, case, result, outputs, setting):
            continue
        problems += [f"{case.family.name}: {text}" for text in result.problems]
        if result.judgement is None:
            continue
        worst = max(worst, result.judgement.ratio)
        measurement = _measure(case, result, outputs[result.index], str(setting))
        context.measurements.append(measurement)
        if result.judgement.ratio > 1 or np.isnan(result.judgement.ratio):
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
