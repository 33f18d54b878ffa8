"""Rounding: onnxruntime's outputs in the file's precision, at every optimization level and provider asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import module_path
from normdeploy.graph.operators.random import has_effect
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import nodes_of
from normdeploy.ort.levels import available_levels
from normdeploy.ort.settings import CPU
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.reduced import narrower_weights
from normdeploy.verification.checks.reference_runs import add_case
from normdeploy.verification.family_case import Case
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Ratios
from normdeploy.verification.runs import judge_outputs
from normdeploy.verification.samples.family import Kind
from normdeploy.verification.sides.exact_agreement import nowhere_finite, shortened
from normdeploy.verification.sides.kernels import known_kernels
from normdeploy.verification.sides.sessions import Setting

_PART = 1 << 14
"""Numbers of a weight that are looked at at once."""


def check_rounding(context: Context) -> list[Check]:
    """Run every case under the deployed settings, and the first ones at every optimization level.

    Where an output then hangs on decisions in most families, further ones come in that were left out for their work.
    """
    problems: dict[Setting, list[str]] = {}
    tried: list[Setting] = []
    worst = 0.0
    total = 0
    logic_holds = context.answered(Question.LOGIC, Status.PASS)
    for setting, cases in chain(_plan(context), _until_decided(context, problems)):
        tried.append(setting)
        for case in cases:
            try:
                outputs = context.subject.run(case.family.feeds, setting)
            except GraphError as error:
                problems.setdefault(setting, []).append(f"{case.family.name}: {error}")
                break
            total += 1
            found, ratio = judge_outputs(context, case, outputs, setting, name_precision=logic_holds)
            worst = max(worst, ratio)
            if found:
                problems.setdefault(setting, []).extend(found)
        if setting not in context.settings:
            context.subject.close(setting)
    elsewhere = ", ".join(sorted({setting.provider for setting in context.settings} - {CPU}))
    if problems:
        everywhere = set(problems) == set(tried) and len(tried) > 1
        where = (
            f"under every setting{elsewhere and ' of '}{elsewhere}"
            if everywhere
            else "under " + "; ".join(map(str, problems))
        )
        first = next(iter(problems.values()))
        context.wrong_under = list(problems)
        measured = Ratios(worst, settings=tuple(map(str, problems)))
        known = known_kernels(context.subject.model.graph) if logic_holds else narrower_weights(context)
        text = "; ".join(filter(None, (f"{where}: {shortened(first)}", known, _drawn(context))))
        return [Check(Question.ROUNDING, Status.FAIL, text, measured)]
    if context.evaluator is None:
        text = "no graph of the reference to measure rounding on; eager's error alone judges"
        return [Check(Question.ROUNDING, Status.WEAK, text)]
    text = f"{total} runs{elsewhere and ' under '}{elsewhere}, error at most {worst:.2f} of what rounding explains"
    amplified = [one for one in context.measurements if one.in_parts is not None]
    if amplified:
        families = ", ".join(dict.fromkeys(one.family for one in amplified))
        held = max(one.in_parts or 0.0 for one in amplified)
        text += (
            f"; beyond it on {families}, where the network amplifies rounding: each part of those runs is right "
            f"(at most {held:.2f} of what rounding explains of it)"
        )
    return [Check(Question.ROUNDING, Status.PASS, text, Ratios(worst, runs=total))]


def _drawn(context: Context) -> str:
    """Return in a clause that the file draws numbers that reach an output, the first place of it; "" if it does not."""
    drawn = [n for n in nodes_of(context.subject.model) if has(n, Trait.RANDOM) and has_effect(n.outputs[0])]
    if not drawn:
        return ""
    at = module_path(drawn[0]) or str(drawn[0].name)
    return (
        f"what {drawn[0].op_type} {at!r} draws at random reaches an output, so that no two runs agree: expected a "
        "model that draws nothing in evaluation"
    )


def check_decided(context: Context) -> list[Check]:
    """Say which outputs hang on ties too much to be judged, and in how many families; in most of them is too many."""
    found: list[Check] = []
    for i, name in enumerate(context.subject.output_names):
        families = _undecided(context, i)
        if not families:
            continue
        text = (
            f"output {name!r} hangs on decisions within rounding (equal scores, margins of zero) in "
            f"{len(families)} of {len(context.cases)} input families and is not judged there"
        )
        if _too_many(context, i):
            text += ": give data on which it decides (data=, --data)"
            found.append(Check(Question.DECISIONS, Status.NOT_EXERCISED, text))
        else:
            context.not_checked.append(f"{text} ({', '.join(families)})")
    if context.waiting:
        left = [family.name for family in context.waiting]
        context.leave_out(f"{len(left)} input families: {', '.join(left)}" if len(left) > 1 else f"family {left[0]!r}")
    return found


def _undecided(context: Context, output: int) -> list[str]:
    return [case.family.name for case in context.cases if output in case.found_undecided]


def _too_many(context: Context, output: int) -> bool:
    return 2 * len(_undecided(context, output)) > len(context.cases)


def _until_decided(context: Context, problems: Mapping[Setting, list[str]]) -> Iterator[tuple[Setting, list[Case]]]:
    """Yield the deployed settings with one more family each time, while an output is undecided in too many of them.

    Args:
        problems: what was found so far, by setting; where there is any, decisions change nothing.
    """
    outputs = range(len(context.subject.output_names))
    while context.waiting and not problems and any(_too_many(context, i) for i in outputs):
        known = len(context.cases)
        add_case(context, context.waiting.pop(0))
        for setting in context.settings if len(context.cases) > known else ():
            yield setting, context.cases[known:]


def check_finite(context: Context) -> list[Check]:
    """Say which outputs and stored weights are not numbers: NaN equals NaN, and nothing would have been compared."""
    bad: list[str] = []
    for i, name in enumerate(context.subject.output_names):
        if nowhere_finite([case.truth[i] for case in context.cases]):
            bad.append(f"output {name!r} of the reference is NaN or infinite on every input")
        elif nowhere_finite([case.eager[i] for case in context.cases]):
            bad.append(f"output {name!r} of the reference is NaN or infinite in {context.precision} on every input")
    for name, value in context.subject.model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.size < 2 or not tensor.dtype.is_floating_point():
            continue
        nan = _count_nan(tensor.numpy())
        if nan:
            bad.append(f"weight {name!r} is NaN in {nan} of {tensor.size} entries")
    if not bad:
        return []
    remedy = "what depends on it cannot be compared: load weights that are numbers, or give data (data=, --data)"
    return [Check(Question.FINITE, Status.NOT_EXERCISED, f"{shortened(bad)}; {remedy}")]


def _count_nan(array: Array) -> int:
    """Return how many numbers of an array are NaN: where the sum of a part's squares is none, none of them is."""
    numbers, nan = array.reshape(-1), 0
    for start in range(0, numbers.size, _PART):
        part = np.array(numbers[start : start + _PART], np.float32)  # a copy: a file's numbers may lie at any byte
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isnan(np.dot(part, part)):
                nan += int(np.isnan(part).sum())
    return nan


def _plan(context: Context) -> list[tuple[Setting, list[Case]]]:
    """Return every deployed setting with all cases, then its other optimization levels with the telling ones."""
    plan = [(setting, context.cases) for setting in context.settings]
    telling = [c for c in context.cases if c.family.user or c.family.kind is Kind.NORMAL] or context.cases[:1]
    telling = telling[:1] if context.heavy else telling
    if context.level.everywhere:
        telling = context.cases
    available = available_levels()
    if context.lean and context.confirmed_and_heavy:
        context.leave_out("optimization levels of the runtime other than the deployed one")
        return plan
    for setting in context.settings:
        for name in context.level.optimization:
            other = replace(setting, level=name)
            if name in available and other not in context.settings:
                plan.append((other, telling))
    return plan
