"""NaN equals NaN whatever a file computes: an output that is a number on no input proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.graph import save_graph


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
