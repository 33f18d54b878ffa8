"""The traced graph against the module: what the rounding of stored constants explains of a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import moved_constants, trace_agreement, verify
from normdeploy.verification.check_levels import LEVELS
from normdeploy.verification.float64_chain import Chain
from normdeploy.verification.moved_constants import MovedGraph
from normdeploy.verification.sides.flat_values import run_evaluator

U = 2.0**-24


class Scaled(nn.Module):
    """Linear layers around attention's scale: a Python number, which float32 rounds by its own share of u."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = width**-0.25
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) * self.scale).tanh() * self.scale)


@pytest.mark.parametrize("width", [3, 6, 24, 48])
def test_a_network_of_much_work_is_allowed_what_its_rounded_constants_explain(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Few runs are made there: each moves the constant as far as rounding can have moved it."""
    monkeypatch.setitem(LEVELS, "default", replace(LEVELS["default"], heavy=0.0))
    model, x = Scaled(width).eval(), torch.linspace(-2, 2, 32).reshape(4, 8)
    traced = trace(model, x)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(model, path, args=x, traced=traced, rewritten=rewritten)
    check = next(check for check in verdict.checks if check.name == "traced")
    assert check.status == "pass"
    # four times the runs' deviation is allowed, of which rounding by at most u is a quarter; what lies within ten times
    # the RMS difference needs no runs, and is at most 0.6 of that here
    assert check.measured.worst_ratio <= 0.6


def test_equal_constants_are_moved_alike_and_as_far_as_they_can_have_been_rounded():
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 20]> agraph (float[1] x) => (float[1] p, float[1] q, float[1] r)'
        " <float c = {0.42044820}, float d = {0.1}>"
        " { e = Constant<value = float {0.42044820}>() p = Mul(x, c) q = Mul(x, e) r = Mul(x, d) }"
    )
    x = np.ones(1)
    before = [float(y) for y in Evaluator(model).run({"x": x}).values()]
    seen = set()
    for seed in range(8):
        after = [float(y) for y in MovedGraph(model, ["c", "d"], seed).run({"x": x}).values()]
        moved = [(b / a - 1) / U for a, b in zip(before, after, strict=True)]
        assert np.allclose(np.abs(moved), 1, atol=1e-6)
        assert moved[0] == pytest.approx(moved[1])
        seen.add(tuple(np.sign(moved[1:])))
    assert len(seen) == 4  # up and down, each by itself


def judged(model: nn.Module, x: Tensor, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Chain], int, str]:
    """Return what a verdict learns of each family, how many graphs it moves constants in, and its answer."""
    chains: list[Chain] = []
    graphs: list[Evaluator] = []

    def chain(*args: Any) -> Chain:
        chains.append(Chain(*args))
        return chains[-1]

    def moved(*args: Any) -> Evaluator:
        graphs.append(MovedGraph(*args))
        return graphs[-1]

    monkeypatch.setattr(trace_agreement, "Chain", chain)
    monkeypatch.setattr(moved_constants, "MovedGraph", moved)
    traced = trace(model, x)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), folder / "net.onnx")
    verdict = verify(model, path, args=x, traced=traced, rewritten=rewritten)
    return chains, len(graphs), verdict.check("traced").status


def test_no_more_runs_are_made_than_say_that_rounding_explains_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, x = Scaled(6).eval(), torch.linspace(-2, 2, 32).reshape(4, 8)
    chains, graphs, status = judged(model, x, tmp_path, monkeypatch)
    assert (graphs, status) == (1, "pass")
    graph = trace(model, x).model
    names = [name for name in graph.graph.initializers if name not in model.state_dict()]
    feeds = {str(graph.graph.inputs[0].name): x.numpy()}
    clean, *moved = (
        run_evaluator(evaluator, feeds)["output"]
        for evaluator in (Evaluator(graph), *(MovedGraph(graph, names, seed) for seed in range(3)))
    )
    squares = [np.square(array - clean) for array in moved]
    found = chains[0]  # of the example
    assert np.allclose(found.least[0], np.sqrt(squares[0] / 3), rtol=1e-6)
    assert np.allclose(found.spread[0], np.sqrt(sum(squares) / 3), rtol=1e-6)
    assert found.measure(), "more runs are left for a difference that three do not explain"


class Counting(Scaled):
    """A scale that grows by a millionth when it is traced: no rounding explains that."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 1e-6 * torch.compiler.is_compiling())


def test_all_runs_are_made_before_a_difference_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, graphs, status = judged(Counting(24).eval(), torch.randn(4, 8), tmp_path, monkeypatch)
    assert (graphs, status) == (8, "note")


def test_numbers_that_an_operator_declares_are_rounded_too(tmp_path: Path) -> None:
    """The two numbers of a Selu are in no file: ONNX declares float32's, torch computes with their own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.SELU(), nn.LayerNorm(6), nn.Linear(6, 6), nn.SELU()).eval()
    x = torch.randn(5, 8)
    traced = trace(model, (x,))
    save_graph(rewrite(traced.model).model, tmp_path / "net.onnx")
    verdict = verify(model, tmp_path / "net.onnx", args=(x,), traced=traced)
    assert verdict.check("traced").status == "pass", verdict.summary()
    assert verdict.status == "pass", verdict.summary()
