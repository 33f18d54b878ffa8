"""Batch companions: a sample's result must not depend on its neighbours."""

from __future__ import annotations

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.verification.bounds.criteria import Bounds, rms
from normdeploy.verification.checks.sizes import drawn_at, why
from normdeploy.verification.context import Context
from normdeploy.verification.cost import SINGLE
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.samples.family import Kind
from normdeploy.verification.samples.ranges import batch_name
from normdeploy.verification.sides.reference import Refused
from normdeploy.verification.sides.structure import is_float
from normdeploy.verification.sides.values import Array


def check_companions(context: Context) -> list[Check]:
    """Compare a sample's result in two batches that differ in every other sample."""
    batch = batch_name(context.specs)
    if batch is None:
        context.not_checked.append("batch companions (the batch dimension is fixed)")
        return []
    if context.lean:
        context.leave_out("batch companions")
        return []
    rows = 2 if context.heavy else 4
    one = drawn_at(context, {batch: rows}, "companions", seed=11)
    other = drawn_at(context, {batch: rows}, "companions", seed=12)
    feeds = {
        spec.name: np.concatenate([one.feeds[spec.name][:1], other.feeds[spec.name][1:]])
        if spec.dynamic.get(0) == batch
        else one.feeds[spec.name]
        for spec in context.specs
    }
    try:
        own = [context.reference.native(batch_of) for batch_of in (one.feeds, feeds)]
    except (Refused, GraphError) as error:
        context.not_checked.append(f"batch companions, {rows} rows: {why(error)}")
        return []
    context.budget.spend(4 * SINGLE, feeds)
    problems: list[str] = []
    notes: list[str] = []
    for setting in context.settings:
        try:
            file = [context.subject.run(batch_of, setting) for batch_of in (one.feeds, feeds)]
        except GraphError as error:
            problems.append(str(error))
            continue
        for i, name in enumerate(context.subject.output_names):
            pairs = [(side[0][i], side[1][i]) for side in (own, file)]
            if any(a.shape != b.shape or not _per_sample(context, i, a, rows) for a, b in pairs):
                continue
            its_own, moved = (_moved(a[0].astype(np.float64), b[0].astype(np.float64)) for a, b in pairs)
            limit = _limit(context, i, max(its_own, moved))
            if its_own > limit:
                notes.append(
                    f"the reference itself mixes the samples of a batch in {name!r} (by {its_own:.3g}), and so does "
                    "the file: a deployed result depends on its batch; normdeploy inspect says where"
                )
            elif not moved <= limit:
                problems.append(
                    f"sample 0 of {name!r} moves by {moved:.3g} when its batch companions change; the reference's "
                    "does not"
                )
    if problems:
        return [Check(Question.COMPANIONS, Status.FAIL, "; ".join(problems))]
    if notes:
        return [Check(Question.COMPANIONS, Status.NOTE, "; ".join(dict.fromkeys(notes)))]
    return [Check(Question.COMPANIONS, Status.PASS, "a sample's result does not depend on its batch companions")]


def _limit(context: Context, index: int, moved: float) -> float:
    """Return what rounding may move an element by, as measured on N(0, 1); S is measured only where it decides."""
    case = next((c for c in context.cases if c.family.kind is Kind.NORMAL), context.cases[0])
    limit = _reach(case.bounds(index, spread=case.rounding.measured))
    return limit if moved <= limit else _reach(case.bounds(index))


def _reach(bounds: Bounds) -> float:
    s = rms(bounds.spread) + bounds.roundoff * float(np.abs(bounds.truth).max(initial=0.0))
    return 8 * 3 * s + 8 * float(bounds.eager.max(initial=0.0))


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
    name = context.subject.output_names[index]
    shape = next(v.shape for v in context.subject.model.graph.outputs if v.name == name)
    return shape is None or not isinstance(shape[0], int)
