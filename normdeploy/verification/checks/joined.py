"""A larger batch made of samples that were judged before, each on its own or a few together.

Where the reference treats each sample on its own (its own precision is asked again), their truths joined are the truth
of the batch, and no float64 run of many rows is needed. A sample that stands in the batch several times is judged once,
by the worst of its results: equal errors do not average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normdeploy.array_types import Array, Arrays
from normdeploy.errors import GraphError
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import SINGLE
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.two_sides import Refused

_FEW = 2
"""Families of which batches are made where a run is much work: S may be needed of each."""


_SAME = 1e-9
"""Difference of two runs in float64, of the largest number, that the order of sums makes: a 60th of float32's unit."""


@dataclass(frozen=True)
class Joined:
    """A batch of known samples.

    Args:
        case: the samples, each once. feeds: the batch, in which they stand in turns. rows: of the batch.
        places: the batch axis of each output.
    """

    case: Case
    feeds: Arrays
    rows: int
    places: Sequence[int]

    def worst(self, outputs: Sequence[Array]) -> list[Array]:
        """Return, of each sample's results in the batch, the elements that are furthest from the truth."""
        pairs = zip(outputs, self.case.truth, self.places, strict=False)
        found = [_worst(output, truth, place, self.rows) for output, truth, place in pairs]
        return [*found, *outputs[len(found) :]]


def _worst(output: Array, truth: Array, place: int, rows: int) -> Array:
    samples = truth.shape[place]
    if output.ndim != truth.ndim or output.shape[place] != rows:
        return output  # another shape than it should have is for the judgement to say
    worst = output.take(np.arange(samples), axis=place)
    if worst.shape != truth.shape:
        return worst
    for start in range(samples, rows, samples):
        count = min(samples, rows - start)
        part = output.take(np.arange(start, start + count), axis=place)
        head = [slice(None)] * output.ndim
        head[place] = slice(0, count)
        at = tuple(head)
        worst[at] = np.where(_further(part, worst[at], truth[at]), part, worst[at])
    return worst


def _further(a: Array, b: Array, truth: Array) -> Array:
    """Return where a is further from the truth than b; what is not as finite as the truth is furthest."""
    if a.dtype.kind not in "fV":
        return np.asarray((a != truth) & (b == truth))
    y = np.asarray(truth, np.float64)
    with np.errstate(invalid="ignore"):
        own, its = (np.where(np.isfinite(v) == np.isfinite(y), np.abs(v - y), np.inf) for v in (_double(a), _double(b)))
    return np.asarray(np.nan_to_num(own, nan=0.0, posinf=np.inf) > np.nan_to_num(its, nan=0.0, posinf=np.inf))


def _double(a: Array) -> Array:
    return np.asarray(a, np.float64)


def join(context: Context, batch: str, rows: int) -> Joined | None:
    """Return a batch of some rows made of those judged before; None where rows are not independent, or not alike.

    Args:
        batch: name of the batch dimension.
    """
    axes = batch_axes(context, batch)
    parts = _alike(context, axes)[: _FEW if context.heavy else None]
    if not axes or not parts:
        return None
    counts = [rows_of(part, axes) for part in parts]
    samples = min(sum(counts), rows)
    feeds, once = (_batch(parts, axes, samples, count) for count in (rows, samples))
    context.effort.spend(2 * SINGLE, feeds)
    try:
        eager = context.reference.native(feeds)
    except (Refused, GraphError):
        return None
    places: list[int] = []
    for i, found in enumerate(eager):
        place = _batch_axis(np.shape(found), [np.shape(part.truth[i]) for part in parts], counts, rows)
        if place is None:
            return None
        places.append(place)

    def joint(values: Sequence[Sequence[Array]]) -> list[Array]:
        return [_joint([part[i] for part in values], place, samples) for i, place in enumerate(places)]

    truth, one = joint([part.truth for part in parts]), parts[0]
    rounding = Spread([np.shape(y) for y in truth], lambda _, __: map(joint, spreads(parts)))
    family = Family(f"{batch}={rows}", once)
    own = joint([part.eager for part in parts])
    case = Case(family, one.names, truth, own, rounding, one.precision, one.noisy, one.seed)
    joined = Joined(case, feeds, rows, places)
    worst = joined.worst(eager)
    if rows <= samples and one.noisy is not None and not one.noisy.decides:
        at_once = replace(case, rounding=Spread.of(rounding.least))
        if not all(result.holds for result in hold_against(at_once, worst)) and _is_alone(context, joined):
            furthest = [_furthest(a, b, y) for a, b, y in zip(worst, own, truth, strict=True)]
            return replace(joined, case=replace(case, eager=furthest))
    return joined if all(result.holds for result in hold_against(case, worst)) else None


def _is_alone(context: Context, joined: Joined) -> bool:
    """Tell whether in float64 each sample of a batch is what it is alone.

    Eager's own error in the batch is rounding then, as its error of each sample alone, however small that was: no run
    with noise has to say so.
    """
    if not context.reference.has_truth:
        return False
    context.effort.spend(1, joined.feeds)
    try:
        found = joined.worst(context.reference.truth(joined.feeds))
    except (Refused, GraphError):
        return False
    return all(map(_is_same, found, joined.case.truth))


def _is_same(found: Array, truth: Array) -> bool:
    """Tell whether an output in float64 is another one but for the order of sums."""
    if not is_float(truth):
        return np.array_equal(found, truth)
    if found.shape != truth.shape or not np.array_equal(np.isfinite(found), np.isfinite(truth)):
        return False
    there = np.isfinite(truth)
    a, b = np.where(there, found, 0.0), np.where(there, truth, 0.0)
    return float(np.abs(a - b).max(initial=0.0)) <= _SAME * float(np.abs(b).max(initial=0.0))


def _furthest(a: Array, b: Array, truth: Array) -> Array:
    """Return of two results, element by element, the one that is further from the truth."""
    return np.where(_further(a, b, truth), a, b) if a.shape == b.shape == truth.shape else b


def spreads(parts: Sequence[Case]) -> Iterator[list[list[Array]]]:
    """Yield S of each part as far as it is known, each time with one more run of those that have runs left."""
    yield [part.rounding.least for part in parts]
    while sum(part.rounding.more() for part in parts):  # one of each, not only of the first that has some left
        yield [part.rounding.least for part in parts]


def batch_axes(context: Context, batch: str | None) -> dict[str, int]:
    """Return the axis of the batch dimension of each input that has it."""
    return {spec.name: axis for spec in context.specs for axis, name in spec.dynamic.items() if name == batch}


def rows_of(case: Case, axes: Mapping[str, int]) -> int:
    """Return how many samples a case has."""
    name = next(iter(axes))
    return int(case.family.feeds[name].shape[axes[name]])


def others(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Return a shape without an axis."""
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


def _batch(parts: Sequence[Case], axes: Mapping[str, int], samples: int, rows: int) -> Arrays:
    """Return the first samples of some cases in turns, as many rows as are asked for."""
    feeds: Arrays = {}
    for name, first in parts[0].family.feeds.items():
        axis = axes.get(name)
        if axis is None:
            feeds[name] = first
        else:
            once = _joint([part.family.feeds[name] for part in parts], axis, samples)
            feeds[name] = once.take(np.arange(rows) % samples, axis=axis)
    return feeds


def _alike(context: Context, axes: Mapping[str, int]) -> list[Case]:
    """Return the cases whose inputs differ in their rows alone, generated ones first."""
    found: list[Case] = []
    for case in sorted(context.cases, key=lambda c: c.family.user):
        feeds = case.family.feeds
        if not found or all(_fits(a, found[0].family.feeds[name], axes.get(name)) for name, a in feeds.items()):
            found.append(case)
    return found


def _fits(a: Array, b: Array, axis: int | None) -> bool:
    return np.array_equal(a, b) if axis is None else others(a.shape, axis) == others(b.shape, axis)


def _batch_axis(
    shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]], counts: Sequence[int], rows: int
) -> int | None:
    """Return the one axis along which parts make up the whole; None where there is none, or more than one."""
    fitting = [
        axis
        for axis, size in enumerate(shape)
        if size == rows
        and all(len(part) == len(shape) and part[axis] == count for part, count in zip(shapes, counts, strict=True))
        and all(others(part, axis) == others(shape, axis) for part in shapes)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _joint(parts: Sequence[Array], axis: int, rows: int) -> Array:
    return np.concatenate(parts, axis=axis).take(np.arange(rows), axis=axis)
