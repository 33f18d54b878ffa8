"""S is measured when something needs it, once, and counts the same as if it had been there from the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.errors import GraphError
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.graph_reference import GraphReference

MODEL = """<ir_version: 8, opset_import: ["" : 18]> g (float[4,8] x) => (float[4,8] y) { y = Sigmoid (x) }"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    model = ir.from_onnx_text(MODEL)
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)}
    family = Family("normal", feeds)
    return make_case(
        GraphReference(model, tmp_path), NoisyGraph(model), family, ["y"], runs=4, seed=0, precision="float32"
    )


def test_what_eagers_own_error_explains_takes_no_run_with_noise(case: Case):
    (result,) = hold_against(case, [case.eager[0]])
    assert result.judgement is not None
    assert result.judgement.ratio <= 1
    assert not case.rounding.measured


def test_what_it_does_not_explain_is_held_against_the_whole_bound(case: Case):
    """An exact eager run explains nothing; the noise of a correct kernel passes, a hundred times as much does not."""
    case.eager = [case.truth[0].astype(np.float32)]
    noisy = NoisyGraph(ir.from_onnx_text(MODEL))
    *_, (s,) = noisy.spreads(case.family.feeds, roundoff=2.0**-24, floor=0.0, runs=4)
    good, bad = (case.truth[0] + factor * s for factor in (3.0, 300.0))
    for outputs, passes in ((good, True), (bad, False)):
        (result,) = hold_against(case, [outputs], exact=False)
        assert result.judgement is not None
        assert (result.judgement.ratio <= 1) == passes
    assert case.rounding.measured


def test_no_more_runs_are_made_than_explain_what_eagers_error_does_not(case: Case):
    """S is the mean of squares: after one of four runs it is at least half of what that run showed."""
    case.eager = [case.truth[0].astype(np.float32)]
    spreads = list(
        NoisyGraph(ir.from_onnx_text(MODEL)).spreads(case.family.feeds, roundoff=2.0**-24, floor=0.0, runs=4)
    )
    assert len(spreads) == 4
    assert all((more[0] >= less[0]).all() for less, more in itertools.pairwise(spreads))
    (result,) = hold_against(case, [case.truth[0] + 3 * spreads[0][0]], exact=False)
    assert result.holds
    assert not case.rounding.measured
    assert np.array_equal(case.rounding.least[0], spreads[0][0])
    assert np.array_equal(case.spread[0], spreads[3][0])  # what needs all of it makes the runs that are left
    assert case.rounding.measured


def test_it_is_measured_once_and_refined_once():
    asked: list[tuple[int, int]] = []

    def measure(runs: int, seed: int) -> Iterator[list[np.ndarray]]:
        asked.append((runs, seed))
        yield [np.full(3, 1.0 if len(asked) == 1 else 2.0)]

    spread = Spread([(3,)], measure, runs=4, seed=7)
    assert not spread.measured
    assert spread.values[0].tolist() == spread.values[0].tolist() == [1.0] * 3
    assert spread.refine()
    assert not spread.refine()
    assert spread.values[0] == pytest.approx(np.sqrt((4 * 1 + 16 * 4) / 20))
    assert [runs for runs, _ in asked] == [4, 16]
    assert len({seed for _, seed in asked}) == 2


def test_runs_that_cannot_be_made_leave_nothing_and_say_so(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stopped(*_: object, **__: object) -> object:
        raise GraphError("operator Odd is unknown")

    monkeypatch.setattr(NoisyGraph, "spreads", stopped)
    told: list[str] = []
    reference = GraphReference(ir.from_onnx_text(MODEL), tmp_path)
    made = make_case(
        reference, case.noisy, case.family, ["y"], runs=4, seed=0, precision="float32", unmeasured=told.append
    )
    assert not made.spread[0].any()
    assert told == ["operator Odd is unknown"]


@pytest.mark.parametrize(
    ("truth", "eager", "nothing"), [(1e40, np.inf, True), (np.nan, np.nan, True), (1.0, 1.0, False)]
)
def test_a_case_without_a_finite_element_shows_nothing(truth: float, eager: float, nothing: bool, case: Case) -> None:
    sides = [np.full_like(y, truth) for y in case.truth], [np.full_like(y, eager) for y in case.eager]
    filled = replace(case, truth=sides[0], eager=sides[1])
    assert filled.shows_nothing == nothing
    sides[0][0].flat[0] = sides[1][0].flat[0] = 1.0  # one element is enough
    assert not filled.shows_nothing
