"""Dynamic sizes: nothing may be baked in, be it a size of the example, a limit beyond it, or two sizes being equal.

A larger batch is made of samples that were judged one by one or a few at a time: where the reference treats each on its
own (its own precision is asked again), their truths joined are the truth, and no float64 run of many rows is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.verification.cases import Case, hold_against
from normdeploy.verification.checks.logic import logic_problems
from normdeploy.verification.checks.rounding import judge_outputs
from normdeploy.verification.context import Context
from normdeploy.verification.samples.families import Family, make_families
from normdeploy.verification.samples.specs import batch_name, dynamic_names, resized
from normdeploy.verification.sides.reference import Refused
from normdeploy.verification.sides.structure import shortened
from normdeploy.verification.sides.values import Array, Arrays

_SIZES = 0.6
"""Share of a level's work after which no further size of a dimension is tried."""

_RUNS = 4
"""Runs with noise of inputs of another size; where they leave a doubt, more follow."""


def drawn_at(context: Context, sizes: dict[str, int], name: str, *, seed: int = 0) -> Family:
    """Return N(0, 1) inputs with some dimensions at other sizes."""
    family = next(make_families(resized(context.specs, sizes), seed=context.seed + seed))
    return Family(name, family.feeds)


def why(error: Refused | GraphError) -> str:
    """Say whether the user's module or our evaluation of its graph stopped."""
    if isinstance(error, Refused):
        return f"the reference refuses it ({error})"
    return f"the reference's graph cannot be evaluated on it here ({error})"


def check_sizes(context: Context) -> None:
    """Run every dynamic dimension at sizes around and far beyond the example's, then all of them at once, unequal."""
    names = dynamic_names(context.specs)
    if not names:
        context.not_checked.append("dynamic dimensions (the file declares none)")
        return
    example = {name: _example_size(context, name) for name in names}
    batch = batch_name(context.specs)
    problems: list[str] = []
    tried: dict[str, list[int]] = {}
    for name in names:
        left: list[int] = []
        for size in context.level.sizes if name == batch else _around(example[name]):
            if tried.get(name) and not context.budget.affords(_SIZES):
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
    if problems:
        context.answer("dynamic", "fail", shortened(problems), sizes=tried)
    elif text:
        context.answer("dynamic", "pass", text, sizes=tried)


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
        case = _joined(context, batch, sizes[batch])
        if case is not None:
            return _judged(context, case, logic=False)
    family = drawn_at(context, sizes, _words(sizes), seed=sum(sizes.values()))
    try:
        case = context.case(family, runs=_RUNS)
    except (Refused, GraphError) as error:
        context.not_checked.append(f"dynamic dimension {_words(sizes)}: {why(error)}")
        return None
    return _judged(context, case)


def _judged(context: Context, case: Case, *, logic: bool = True) -> list[str]:
    """Return the problems of one case under the deployed settings and, unless told otherwise, in float64."""
    problems: list[str] = []
    try:
        if logic:
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


def _joined(context: Context, batch: str, rows: int) -> Case | None:
    """Return a case of many rows made of those judged before; None where rows are not independent, or not alike."""
    axes = {spec.name: axis for spec in context.specs for axis, name in spec.dynamic.items() if name == batch}
    parts = _alike(context, axes)
    if rows < 2 or not parts:
        return None
    count = sum(_rows(part, axes) for part in parts)
    chosen = parts * -(-rows // count)
    feeds: Arrays = {}
    for name, first in parts[0].family.feeds.items():
        axis = axes.get(name)
        feeds[name] = first if axis is None else _joint([p.family.feeds[name] for p in chosen], axis, rows)
    context.budget.spend(1, feeds)
    try:
        eager = context.reference.native(feeds)
    except (Refused, GraphError):
        return None
    truth, own, spread = [], [], []
    for i, found in enumerate(eager):
        shapes = [np.shape(part.truth[i]) for part in chosen]
        place = _batch_axis(np.shape(found), shapes, [_rows(part, axes) for part in chosen], rows)
        if place is None:
            return None
        truth.append(_joint([part.truth[i] for part in chosen], place, rows))
        own.append(_joint([part.eager[i] for part in chosen], place, rows))
        spread.append(_joint([part.spread[i] for part in chosen], place, rows))
    family = Family(f"{batch}={rows}", feeds)
    one = parts[0]
    known = one.precision, one.noisy, one.seed
    case = Case(family, one.names, truth, own, spread, *known, fast=one.fast, runs=one.runs)
    results = hold_against(case, eager)
    alone = all(not r.problems and (r.judgement is None or r.judgement.ratio <= 1) for r in results)
    return case if alone else None


def _alike(context: Context, axes: dict[str, int]) -> list[Case]:
    """Return the cases whose inputs differ in their rows alone, generated ones first."""
    found: list[Case] = []
    for case in sorted(context.cases, key=lambda c: c.family.user):
        feeds = case.family.feeds
        if not found or all(_fits(a, found[0].family.feeds[name], axes.get(name)) for name, a in feeds.items()):
            found.append(case)
    return found


def _fits(a: Array, b: Array, axis: int | None) -> bool:
    if axis is None:
        return np.array_equal(a, b)
    return a.shape[:axis] + a.shape[axis + 1 :] == b.shape[:axis] + b.shape[axis + 1 :]


def _rows(case: Case, axes: dict[str, int]) -> int:
    name = next(iter(axes))
    return int(case.family.feeds[name].shape[axes[name]])


def _batch_axis(
    shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]], counts: Sequence[int], rows: int
) -> int | None:
    """Return the one axis along which parts make up the whole; None where there is none, or more than one."""
    fitting = [
        axis
        for axis, size in enumerate(shape)
        if size == rows
        and all(len(part) == len(shape) and part[axis] == count for part, count in zip(shapes, counts, strict=True))
        and all(part[:axis] + part[axis + 1 :] == shape[:axis] + shape[axis + 1 :] for part in shapes)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _joint(parts: Sequence[Array], axis: int, rows: int) -> Array:
    return np.concatenate(parts, axis=axis).take(np.arange(rows), axis=axis)
