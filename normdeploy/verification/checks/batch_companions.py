"""Batch companions: a sample's result must not depend on its neighbours."""

from __future__ import annotations

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.verification.bounds.criteria import Bounds, rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.dynamic_sizes import drawn_at, why
from normdeploy.verification.evaluation_cost import SINGLE
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.samples.family import Kind
from normdeploy.verification.samples.ranges import batch_name
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.two_sides import Refused


def check_companions(context: Context) -> list[Check]:
    """Compare a sample's result in two batches that differ in every other sample."""
    batch = batch_name(context.specs)
    if batch is None:
        context.not_checked.append("batch companions (the batch dimension is fixed)")
        return []
    if context.lean:
        context.leave_out("batch companions")
        return []
    first, feeds, rows = _batches(context, batch)
    try:
        known = context.example if context.example is not None and context.example.feeds is first else None
        own = [context.reference.native(first) if known is None else known.eager, context.reference.native(feeds)]
    except (Refused, GraphError) as error:
        context.not_checked.append(f"batch companions, {rows[1]} rows: {why(error)}")
        return []
    context.effort.spend(4 * SINGLE, feeds)
    problems: list[str] = []
    notes: list[str] = []
    for setting in context.settings:
        try:
            file = [context.subject.run(batch_of, setting) for batch_of in (first, feeds)]
        except GraphError as error:
            problems.append(str(error))
            continue
        for i, name in enumerate(context.subject.output_names):
            pairs = [(side[0][i], side[1][i]) for side in (own, file)]
            if any(a.shape[1:] != b.shape[1:] or not _per_sample(context, i, (a, b), rows) for a, b in pairs):
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
    limit = _reach(case.bounds(index, spread=False))
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


def _batches(context: Context, batch: str) -> tuple[Feeds, Feeds, tuple[int, int]]:
    """Return two batches that have their first sample in common and nothing else, and how many samples each has.

    Where a run is much work and the example is one sample, that is the first of them: its results are known.
    """
    example = context.example
    places = {spec.name: spec.dynamic.get(0) == batch for spec in context.specs}
    leading = all(places[spec.name] or batch not in spec.dynamic.values() for spec in context.specs)
    rows = 2 if context.heavy else 4
    known: Feeds | None = None
    if context.heavy and leading and example is not None:
        single = all(example.feeds[name].shape[0] == 1 for name, has in places.items() if has)
        known = example.feeds if single else None
    first = drawn_at(context, {batch: rows}, "companions", seed=11).feeds if known is None else known
    other = drawn_at(context, {batch: rows}, "companions", seed=12).feeds
    feeds = {
        name: np.concatenate([first[name][:1], other[name][1:]]) if has else first[name] for name, has in places.items()
    }
    return first, feeds, (rows if known is None else 1, rows)


def _per_sample(context: Context, index: int, pair: tuple[Array, Array], rows: tuple[int, int]) -> bool:
    """True where an output's axis 0 is the batch, in both of two batches."""
    if any(a.ndim == 0 or a.shape[0] != n or not is_float(a) for a, n in zip(pair, rows, strict=True)):
        return False
    name = context.subject.output_names[index]
    shape = next(v.shape for v in context.subject.model.graph.outputs if v.name == name)
    return shape is None or not shape.rank() or not isinstance(shape[0], int)
