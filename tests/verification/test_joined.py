"""Batches made of samples judged before: repeated samples are judged once, by the worst of their results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from normdeploy.array_types import Array, Arrays
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.checks.joined import Joined, join, spreads
from normdeploy.verification.family_case import Case
from normdeploy.verification.samples.family import Family

TRUTH = np.arange(6, dtype=np.float64).reshape(2, 3)


@pytest.fixture
def joined() -> Joined:
    """Two samples that stand in a batch of five: 0, 1, 0, 1, 0."""
    feeds = {"x": TRUTH.astype(np.float32)}
    case = Case(Family("N=5", feeds), ["y"], [TRUTH], [TRUTH], Spread.of([np.zeros((2, 3))]), "float32", None)
    return Joined(case, {"x": feeds["x"][np.arange(5) % 2]}, 5, [0])


def test_the_parts_make_their_runs_together_and_no_more_than_are_asked_for():
    def part(*runs: float) -> Case:
        spread = Spread([(3,)], lambda _, __: iter([[np.full(3, s)] for s in runs]), runs=len(runs))
        return Case(Family("x", {}), ["y"], [TRUTH[0]], [TRUTH[0]], spread, "float32", None)

    parts = [part(1.0, 2.0), part(5.0)]
    found = spreads(parts)
    assert [s[0][0] for s in next(found)] == [0.0, 0.0]
    assert [s[0][0] for s in next(found)] == [1.0, 5.0]
    assert not parts[0].rounding.measured
    assert [[s[0][0] for s in step] for step in found] == [[2.0, 5.0]]
    assert all(one.rounding.measured for one in parts)


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("wrong", [0.5, np.nan, np.inf])
def test_an_error_in_any_repetition_is_judged(joined: Joined, row: int, wrong: float):
    output = TRUTH[np.arange(5) % 2].astype(np.float32)
    output[row, 1] += np.float32(wrong)
    (found,) = joined.worst([output])
    assert found.shape == TRUTH.shape
    differs = ~np.isclose(found, TRUTH)
    assert np.argwhere(differs).tolist() == [[row % 2, 1]]


def test_right_results_stay_right(joined: Joined):
    (found,) = joined.worst([TRUTH[np.arange(5) % 2]])
    np.testing.assert_array_equal(found, TRUTH)


def test_another_shape_is_left_for_the_judgement(joined: Joined):
    (found,) = joined.worst([np.zeros((4, 3))])
    assert found.shape == (4, 3)


def test_integers_differ_where_any_repetition_does(joined: Joined):
    joined.case.truth[0] = np.array([[0, 1, 2], [3, 4, 5]])
    output = joined.case.truth[0][np.arange(5) % 2].copy()
    output[3, 2] = 9
    (found,) = joined.worst([output])
    assert found.tolist() == [[0, 1, 2], [3, 4, 9]]


class Reference:
    """Doubles numbers; of a batch, with an error of float32 and, in float64, with what it mixes of the samples in."""

    has_truth = True

    def __init__(self, mixed: float) -> None:
        self.mixed = mixed

    def native(self, feeds: Arrays) -> list[Array]:
        return [(2 * feeds["x"] + (2.0**-12 if len(feeds["x"]) > 1 else 0.0)).astype(np.float32)]

    def truth(self, feeds: Arrays) -> list[Array]:
        x = feeds["x"].astype(np.float64)
        return [2 * x + (self.mixed * x.mean(0) if len(x) > 1 else 0.0)]


@pytest.mark.parametrize(("mixed", "noise"), [(0.0, 0), (1e-6, 1)])
def test_samples_that_float64_shows_to_be_alone_need_no_noise(mixed: float, noise: int):
    """Eager hit the truth of each sample by accident, and misses it in the batch by a unit or so."""
    reference, made = Reference(mixed), list[int]()

    def case(x: Array) -> Case:
        def measured(*_: Any) -> Any:
            made.append(1)
            yield [np.full(x.shape, 2.0**-12)]

        feeds, noisy = {"x": x}, SimpleNamespace(decides=False)
        rounding = Spread([x.shape], measured, runs=1)
        return Case(Family("x", feeds), ["y"], [2.0 * x], [2 * x], rounding, "float32", noisy)  # type: ignore[arg-type]

    cases = [case(np.full((1, 3), number, np.float32)) for number in (1.0, 3.0)]
    context = SimpleNamespace(
        reference=reference,
        heavy=False,
        cases=cases,
        specs=[SimpleNamespace(name="x", dynamic={0: "batch"})],
        effort=SimpleNamespace(spend=lambda *_: None),
    )
    found = join(context, "batch", 2)  # type: ignore[arg-type] # what is asked of one
    assert found is not None
    assert bool(made) == bool(noise)
    off = np.abs(np.asarray(found.case.eager[0], np.float64) - found.case.truth[0])
    assert off.tolist() == [[0.0 if noise else 2.0**-12] * 3] * 2
