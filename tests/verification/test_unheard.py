"""What no output is computed of shows no mutant; what may be chosen, or is read by more than its sizes, has to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from normdeploy.graph import Evaluator
from normdeploy.verification import verify
from normdeploy.verification.mutation.unheard import unheard

GRAPH = """g (float[n,8] x) => (float[n,8] y)
<float[8] scale = {{0.3, 0.5, 2, 1.5, 0.7, 0.9, 1.1, 3}}, float ten = {{10}}, float nine = {{9}},
 float[8] zero = {{0, 0, 0, 0, 0, 0, 0, 0}}> {{
  h = Tanh(x)
  a = Mul(h, scale)
  {rest}
}}"""
SIZES = "s = Shape(a) e = Expand(zero, s) y = Add(h, e)"
CHOSEN = "c = Less({asked}, ten) b = Sin(h) y = Where(c, {first}, {second})"


@pytest.mark.parametrize(
    ("rest", "silent"),
    [
        (SIZES, True),
        (CHOSEN.format(asked="nine", first="b", second="a"), True),
        (CHOSEN.format(asked="nine", first="a", second="b"), False),
        (CHOSEN.format(asked="h", first="b", second="a"), False),  # a choice by what is fed
        (SIZES.replace("Add(h, e)", "Add(a, e)"), False),
    ],
)
def test_a_site_of_which_no_output_is_computed_is_harmless(
    rest: str, silent: bool, graph_of: Callable[[str], ir.Model], tmp_path: Path
) -> None:
    model = graph_of(GRAPH.format(rest=rest))
    assert ("a" in unheard(Evaluator(model))) == silent
    ir.save(model, tmp_path / "g.onnx")
    verdict = verify(tmp_path / "g.onnx", tmp_path / "g.onnx", level="quick")
    mutants = [m for site in verdict.sites if site.where == "a" for m in site.mutants]
    assert all(m.harmless and "no output is computed" in m.note for m in mutants) == silent or not mutants
    assert verdict.status == "pass" or (not silent and "asked" not in rest), verdict.summary()


def test_a_body_hears_what_it_reads_from_around_it(graph_of: Callable[[str], ir.Model]) -> None:
    rest = """m = ReduceMax<keepdims = 0>(h) c = Less(m, ten)
        y = If(c) <then_branch = t () => (float[n,8] p) { p = Neg(a) },
                   else_branch = e () => (float[n,8] q) { q = Neg(h) }>"""
    assert "a" not in unheard(Evaluator(graph_of(GRAPH.format(rest=rest))))
