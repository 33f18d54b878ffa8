"""Dynamic sizes: nothing may be baked in, be it a size of the example, a limit beyond it, or two sizes being equal.

A larger batch is made of samples that were judged before (:mod:`.joined`), a size that families had is not run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.joined import Joined, batch_axes, join, others, rows_of
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Sizes
from normdeploy.verification.runs import Ran, judge_outputs
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.family import Family
from normdeploy.verification.samples.ranges import InputRange, batch_name, dynamic_names, resized
from normdeploy.verification.sides.exact_agreement import shortened
from normdeploy.verification.sides.two_sides import Refused

_SIZES = 0.6
"""Share of a level's work after which no further size of a dimension is tried."""

_RUNS = 4
"""Runs with noise of inputs of another size; where they leave a doubt, more follow."""


def drawn_at(
    context: Context, sizes: dict[str, int], name: str, *, seed: int = 0, specs: Sequence[InputRange] | None = None
) -> Family:
    """Return N(0, 1) inputs with some dimensions at other sizes; of other ranges, if these are given."""
    family = next(make_families(resized(context.specs if specs is None else specs, sizes), seed=context.seed + seed))
    return Family(name, family.feeds)


def why(error: Refused | GraphError) -> str:
    """Say whether the user's module or our evaluation of its graph stopped."""
    if isinstance(error, Refused):
        return f"the reference refuses it ({error})"
    return f"the reference's graph cannot be evaluated on it here ({error})"


def check_sizes(context: Context) -> list[Check]:
    """Run every dynamic dimension at sizes around and far beyond the example's, then all of them at once, unequal."""
    names = dynamic_names(context.specs)
    if not names:
        context.not_checked.append("dynamic dimensions (the file declares none)")
        return []
    example = {name: _example_size(context, name) for name in names}
    batch = batch_name(context.specs)
    problems: list[str] = []
    tried: dict[str, list[int]] = {}
    seen = _rows_seen(context, batch)
    for name in names:
        left: list[int] = []
        for size in context.level.sizes if name == batch else _around(example[name]):
            if name == batch and size in seen:
                tried.setdefault(name, []).append(size)
                continue
            if tried.get(name) and not context.effort.affords(_SIZES):
                left.append(size)
                continue
            found = _at(context, {name: size}, batch)
            if found is not None:
                tried.setdefault(name, []).append(size)
                problems += found
        if left:
            context.leave_out(f"dynamic dimension {name!r} at {', '.join(map(str, left))}")
    together = _together(example) if len(names) > 1 else []
    text = ", ".join(f"{name} at {sizes}" for name, sizes in tried.items())
    for sizes in together:
        found = _at(context, sizes, batch)
        if found is not None:
            text += f"; {_words(sizes)}"
            problems += found
    if text and context.known_by_algebra and context.links.hold:
        context.leave_out("the file in float64 at other sizes (algebra shows it for every input)")
    if problems:
        return [Check(Question.DYNAMIC, Status.FAIL, shortened(problems), Sizes(tried))]
    return [Check(Question.DYNAMIC, Status.PASS, text, Sizes(tried))] if text else []


def _rows_seen(context: Context, batch: str | None) -> set[int]:
    """Return the sizes of the batch that families were judged at, everything else as in the example."""
    axes = batch_axes(context, batch)

    def alike(case: Case) -> bool:
        pairs = [(np.shape(case.family.feeds[spec.name]), spec) for spec in context.specs]
        return all(others(shape, axes.get(s.name)) == others(s.shape, axes.get(s.name)) for shape, s in pairs)

    return {rows_of(case, axes) for case in context.cases if axes and alike(case)}


def _around(size: int) -> tuple[int, ...]:
    return (size + 1, 4 * size + 1, max(2, size // 2))


def _together(example: dict[str, int]) -> list[dict[str, int]]:
    """Return settings of all dimensions at once, no two alike: larger and smaller by turns, the reverse, all larger."""
    settings: list[dict[str, int]] = []
    for turn in (0, 1, 2):
        sizes: dict[str, int] = {}
        for place, (name, size) in enumerate(example.items()):
            chosen = 2 * size + 1 if turn == 2 or (place + turn) % 2 else max(2, size // 2)
            while chosen in sizes.values():
                chosen += 1
            sizes[name] = chosen
        settings.append(sizes)
    return settings


def _words(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _example_size(context: Context, name: str) -> int:
    return next(s.shape[axis] for s in context.specs for axis, dim in s.dynamic.items() if dim == name)


def _at(context: Context, sizes: dict[str, int], batch: str | None) -> list[str] | None:
    """Return the problems at some sizes; None where the reference does not take them."""
    if batch is not None and list(sizes) == [batch]:
        joined = join(context, batch, sizes[batch])
        if joined is not None:
            return _judged_joined(context, joined)
    refused: list[Refused | GraphError] = []
    for specs in (context.specs, *_with_lengths(context, sizes, batch)):
        family = drawn_at(context, sizes, _words(sizes), seed=sum(sizes.values()), specs=specs)
        try:
            case = context.case(family, runs=_RUNS)
        except (Refused, GraphError) as error:
            refused.append(error)
            continue
        return _judged(context, case)
    context.not_checked.append(f"dynamic dimension {_words(sizes)}: {why(refused[0])}")
    return None


def _with_lengths(context: Context, sizes: dict[str, int], batch: str | None) -> Iterator[list[InputRange]]:
    """Yield ranges in which vectors of integers end at one of the other sizes, as the lengths of padded inputs do."""
    vectors = {spec.name for spec in context.specs if spec.is_vector and not spec.table and not spec.is_mask}
    for size in (size for name, size in sizes.items() if vectors and name != batch):
        yield [
            replace(spec, low=min(spec.low, max(1, size // 2)), high=size) if spec.name in vectors else spec
            for spec in context.specs
        ]


def _judged(context: Context, case: Case) -> list[str]:
    """Return the problems of one case under the deployed settings and, where no algebra shows it, in float64."""
    problems: list[str] = []
    if not (context.known_by_algebra and context.links.hold):
        try:
            problems, _ = logic_problems(case, context.subject.logic(case.family.feeds))
        except GraphError as error:
            # the evaluator refuses what the runtime may accept; the runtime has the last word below
            context.not_checked.append(f"{case.family.name} in float64: the file cannot be evaluated on it ({error})")
    for setting in context.settings:
        try:
            outputs = context.subject.run(case.family.feeds, setting)
        except GraphError as error:
            problems.append(f"{case.family.name}: {error}")
            continue
        problems += judge_outputs(context, case, outputs, setting, name_precision=False)[0]
    return problems


def _judged_joined(context: Context, joined: Joined) -> list[str]:
    """Return the problems of a batch of known samples under the deployed settings."""
    problems: list[str] = []
    if context.subject.watch is not None:
        with suppress(GraphError):  # what cannot be evaluated here is the runtime's to refuse
            context.subject.logic(joined.feeds)
    for setting in context.settings:
        try:
            outputs = context.subject.run(joined.feeds, setting)
        except GraphError as error:
            problems.append(f"{joined.case.family.name}: {error}")
            continue
        ran = Ran(joined.feeds, outputs)
        worst = joined.worst(outputs)
        problems += judge_outputs(context, joined.case, worst, setting, name_precision=False, ran=ran)[0]
    return problems
