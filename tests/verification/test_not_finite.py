"""NaN equals NaN whatever a file computes: an output that is a number on no input proves nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from torch import nn

import normdeploy as nd
from normdeploy.graph import save_graph
from normdeploy.verification.derivation.regions.differences import differs, not_finite_alike


class TwoHeads(nn.Module):
    def __init__(self, broken: float) -> None:
        super().__init__()
        self.sound, self.other = nn.Linear(4, 3), nn.Linear(4, 2)
        with torch.no_grad():
            self.other.weight.fill_(broken)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sound(x), self.other(x)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_an_output_that_is_never_a_number_is_not_exercised(broken: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = nd.export(TwoHeads(broken).eval(), (torch.randn(2, 4),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "not-exercised"
    assert any("NaN or infinite on every input" in reason for reason in result.verdict.reasons)


def test_an_output_that_is_a_number_somewhere_is_judged(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0, x, float("-inf"))

    result = nd.export(Masked(), (torch.randn(2, 4),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert all(check.name != "finite" for check in result.verdict.checks)


def test_an_output_that_float32_never_holds_is_not_exercised(tmp_path: Path) -> None:
    """1e40 is a number in float64 alone: both sides are infinite, and no element is compared."""

    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            large = x.abs() + 1e20
            return x + 1, large * large

    result = nd.export(Large(), (torch.randn(2, 4),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "not-exercised"
    assert any("infinite in float32 on every input" in reason for reason in result.verdict.reasons)


def test_what_is_no_number_on_the_first_inputs_is_looked_at_on_further_ones(graph_of, tmp_path: Path) -> None:
    """A mean of logarithms, as of spectra: N(0, 1) gives none; the little that level quick feeds begins with it."""
    model = graph_of("""g (float[n, 6, 9] x) => (float[n, 4] y)
        <float[4, 6] w = {1, 2, -1, 0.5, 3, 1, 0.2, -2, 1, 1, 0.5, 0.1, 1, 1, 1, -1, -1, 2, 0.3, 0.2, 1, 2, -1, -1},
         float[4] g = {1, 0.5, 2, 1}, float[4] b = {0.1, -1, 0.5, 2}, float tiny = {0.001}, int64[1] last = {2}> {
        a = Add(x, tiny) l = Log(a) m = ReduceMean<keepdims = 0>(l, last) p = Gemm<transB = 1>(m, w)
        r = Relu(p) y = BatchNormalization(r, g, b, b, g) }""")
    save_graph(model, tmp_path / "net.onnx")
    verdict = nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx", verify="quick").verdict
    assert verdict is not None
    assert verdict.status == "pass", verdict.summary()


@pytest.mark.parametrize("variance", [-1.0, float("inf")])
def test_a_norm_that_makes_no_number_in_the_source_either_is_not_called_wrong(variance: float, tmp_path: Path) -> None:
    """In an operator set whose BatchNormalization is another, results are compared, and NaN says nothing there."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]> g (float[1,4,5] x) => (float[1,4,5] y)
        <float[4] g = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}, float[4] m = {1, 2, 3, 4}, float[4] v = {1, 1, 1, 1}>
        { y = BatchNormalization (x, g, b, m, v) }""")
    numbers = np.array([1.0, -1.0, variance, 2.0], np.float32)
    model.graph.initializer[3].CopyFrom(numpy_helper.from_array(numbers, "v"))
    onnx.save(model, tmp_path / "net.onnx")
    verdict = nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx", verify="quick").verdict
    assert verdict is not None
    assert verdict.status != "fail"
    detail = verdict.check("derivation").detail
    assert "NaN or infinite at" in detail
    assert "as the source is; expected finite numbers" in detail
    assert "normdeploy inspect" in detail


def test_what_is_no_number_where_the_source_has_one_is_wrong() -> None:
    want, have = torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([1.0, torch.nan, torch.inf])
    wrong = differs(want, have)
    assert wrong is not None
    assert "NaN or infinite at 2 of 3 places" in wrong.text
    assert "the source's NaN or infinite at 1 of 3 places" in wrong.text
    assert not not_finite_alike(want, have)
    assert not_finite_alike(want, want)
    assert not not_finite_alike(torch.ones(3), torch.ones(3))
