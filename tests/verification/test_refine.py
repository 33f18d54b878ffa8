"""A spread of a few runs that was drawn too small is measured anew before it fails anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from normdeploy.verification.bounds.criteria import judge
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.float64_chain import ROUNDED_ONCE, ROUNDED_OTHERWISE
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.graph_reference import GraphReference

MODEL = """<ir_version: 8, opset_import: ["" : 18]> g (float[4,8] x) => (float[4,8] y)
<float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}> { z = Mul (x, g)  y = Sigmoid (z) }"""


def case(tmp_path: Path, shrunk: float) -> Case:
    """A case whose first runs drew S too small by a factor."""
    model = ir.from_onnx_text(MODEL)
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)}
    reference = GraphReference(model, tmp_path)
    made = make_case(reference, NoisyGraph(model), Family("normal", feeds), ["y"], runs=4, seed=0, precision="float32")
    made.eager = [made.truth[0].astype(np.float32).astype(np.float64)]
    values = made.spread
    values[0] *= shrunk
    return made


def test_a_small_draw_is_measured_anew(tmp_path: Path):
    honest, unlucky = case(tmp_path, 1.0), case(tmp_path, 0.25)
    before = unlucky.spread[0].copy()
    outputs = [honest.truth[0] + 3 * honest.spread[0]]
    bounds = unlucky.bounds(0, eager=False)
    assert judge(outputs[0], bounds).ratio > 1
    (result,) = hold_against(unlucky, outputs, eager=False, exact=False)
    assert result.judgement is not None
    assert result.judgement.ratio <= 1
    assert float(np.median(unlucky.spread[0] / before)) > 2
    assert not unlucky.rounding.refine()  # once


def test_a_real_difference_still_fails(tmp_path: Path):
    made = case(tmp_path, 1.0)
    wrong = [made.truth[0] + 40 * made.spread[0]]
    (result,) = hold_against(made, wrong, eager=False, exact=False)
    assert result.judgement is not None
    assert result.judgement.ratio > 1


def test_the_chain_leaves_a_sanity_check(tmp_path: Path):
    made = case(tmp_path, 1.0)
    once, otherwise = ROUNDED_ONCE, ROUNDED_OTHERWISE
    for factor, limit, fails in (
        (8.0, once, False),
        (200.0, once, True),
        (200.0, otherwise, False),
        (5e3, otherwise, True),
    ):
        problems, ratio = logic_problems(made, [made.truth[0] + factor * made.spread[0]], limit=limit)
        assert ratio > 1
        assert bool(problems) == fails
    assert logic_problems(made, [made.truth[0] + 8 * made.spread[0]])[0]
