"""NaN equals NaN whatever a file computes: an output that is a number on no input proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import normdeploy as nd


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
