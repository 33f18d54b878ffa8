"""Batch companions and dynamic sizes: a sample's result must not depend on its neighbours, nor a size be baked in."""

from __future__ import annotations

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.verify.cases import Case
from normdeploy.verify.context import Context
from normdeploy.verify.criteria import rms
from normdeploy.verify.families import Family, make_families
from normdeploy.verify.logic import logic_problems
from normdeploy.verify.rounding import judge_outputs
from normdeploy.verify.sides import Refused
from normdeploy.verify.specs import batch_name, dynamic_names, resized
from normdeploy.verify.structure import is_float, shortened
from normdeploy.verify.values import Array

_SIZES = 0.6
"""Share of a level's work after which no further size of a dimension is tried."""


def _family(context: Context, sizes: dict[str, int], name: str, *, seed: int = 0) -> Family:
    family = next(make_families(resized(context.specs, sizes), seed=context.seed + seed))
    return Family(name, family.feeds)


def _judged(context: Context, case: Case) -> list[str]:
    """Return the problems of one case under the deployed settings and in float64."""
    try:
        problems, _ = logic_problems(case, context.subject.logic(case.family.feeds))
    except GraphError as error:
        # the evaluator refuses what the runtime may accept; the runtime has the last word below
        problems = [f"{case.family.name}: the file cannot be evaluated in float64: {error}"]
    for setting in context.settings:
        try:
            outputs = context.subject.run(case.family.feeds, setting)
        except GraphError as error:
            problems.append(f"{case.family.name}: {error}")
            continue
        problems += judge_outputs(context, case, outputs, str(setting), name_precision=False)[0]
    return problems


def _why(error: Refused | GraphError) -> str:
    """Say whether the user's module or our evaluation of its graph stopped."""
    if isinstance(error, Refused):
        return f"the reference refuses it ({error})"
    return f"the reference's graph cannot be evaluated on it here ({error})"


def check_sizes(context: Context) -> None:
    """Run every declared dynamic dimension at several sizes, one at a time, others as in the example."""
    names = dynamic_names(context.specs)
    if not names:
        context.not_checked.append("dynamic dimensions (the file declares none)")
        return
    problems: list[str] = []
    tried: dict[str, list[int]] = {name: [] for name in names}
    batch = batch_name(context.specs)
    for name in names:
        example = _example_size(context, name)
        sizes = context.level.sizes if name == batch else tuple({max(2, example // 2), example + 1, 2 * example})
        left: list[int] = []
        for size in sizes:
            if tried[name] and not context.budget.affords(_SIZES):
                left.append(size)
                continue
            family = _family(context, {name: size}, f"{name}={size}", seed=size)
            try:
                case = context.case(family)
            except (Refused, GraphError) as error:
                context.not_checked.append(f"dynamic dimension {name!r} at size {size}: {_why(error)}")
                continue
            tried[name].append(size)
            problems += _judged(context, case)
        if left:
            context.leave_out(f"dynamic dimension {name!r} at {', '.join(map(str, left))}")
    text = ", ".join(f"{name} at {sizes}" for name, sizes in tried.items() if sizes)
    if problems:
        context.answer("dynamic", "fail", shortened(problems), sizes=tried)
    elif text:
        context.answer("dynamic", "pass", text, sizes=tried)


def _example_size(context: Context, name: str) -> int:
    for spec in context.specs:
        for axis, dim in spec.dynamic.items():
            if dim == name:
                return spec.shape[axis]
    raise KeyError(name)


def check_companions(context: Context) -> None:
    """Compare a sample's result in two batches that differ in every other sample."""
    batch = batch_name(context.specs)
    if batch is None:
        context.not_checked.append("batch companions (the batch dimension is fixed)")
        return
    rows = 2 if context.heavy else 4
    one = _family(context, {batch: rows}, "companions", seed=11)
    other = _family(context, {batch: rows}, "companions", seed=12)
    feeds = {
        spec.name: np.concatenate([one.feeds[spec.name][:1], other.feeds[spec.name][1:]])
        if spec.dynamic.get(0) == batch
        else one.feeds[spec.name]
        for spec in context.specs
    }
    try:
        case = context.case(one)
        mixed = context.reference.truth(feeds)
    except (Refused, GraphError) as error:
        context.not_checked.append(f"batch companions, {rows} rows: {_why(error)}")
        return
    problems: list[str] = []
    notes: list[str] = []
    for setting in context.settings:
        try:
            first = context.subject.run(one.feeds, setting)
            second = context.subject.run(feeds, setting)
        except GraphError as error:
            problems.append(str(error))
            continue
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            if (
                not _per_sample(context, i, a, rows)
                or a.dtype.kind != "f"
                or a.shape != b.shape
                or mixed[i].shape != a.shape
            ):
                continue
            bounds = case.bounds(i)
            s = rms(bounds.spread) + bounds.roundoff * float(np.abs(bounds.truth).max(initial=0.0))
            limit = 8 * 3 * s + 8 * float(bounds.eager.max(initial=0.0))
            own = _moved(mixed[i][0], case.truth[i][0])
            moved = _moved(a[0].astype(np.float64), b[0].astype(np.float64))
            if own > limit:
                notes.append(
                    f"the reference itself mixes the samples of a batch in {case.names[i]!r} (by {own:.3g}), and so "
                    "does the file: a deployed result depends on its batch; normdeploy inspect says where"
                )
            elif not moved <= limit:
                problems.append(
                    f"sample 0 of {case.names[i]!r} moves by {moved:.3g} when its batch companions change; the "
                    f"reference's does not"
                )
    if problems:
        context.answer("companions", "fail", "; ".join(problems))
    elif notes:
        context.answer("companions", "note", "; ".join(dict.fromkeys(notes)))
    else:
        context.answer("companions", "pass", "a sample's result does not depend on its batch companions")


def _moved(first: Array, second: Array) -> float:
    """Return the largest difference; NaN on both sides and equal infinities are none, NaN on one side is infinite."""
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore"):  # an infinity less itself, where nothing moved
        change = np.where(same, 0.0, np.abs(first - second))
    return float(np.where(np.isnan(change), np.inf, change).max(initial=0.0))


def _per_sample(context: Context, index: int, array: Array, rows: int) -> bool:
    """True where an output's axis 0 is the batch."""
    if array.ndim == 0 or array.shape[0] != rows or not is_float(array):
        return False
    value = context.subject.model.graph.outputs[index]
    return value.shape is None or not isinstance(value.shape[0], int)
