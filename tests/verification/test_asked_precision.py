"""Modules that ask which precision they run in: the float64 run answers as the module's own does."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd


class EpsilonByPrecision(nn.Module):
    """The norm of several public models: its epsilon is another one below float32."""

    def __init__(self, single: float = 1e-5, below: float = 1e-2) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.rand(8) + 0.5), nn.Linear(8, 4)
        self.single, self.below = single, below

    def forward(self, x: Tensor) -> Tensor:
        epsilon = self.single if x.dtype == torch.float32 else self.below
        variance, mean = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
        return self.head((x - mean) * (variance + epsilon).rsqrt() * self.weight)


class Refusing(nn.Module):
    """It runs in one precision, and makes what it needs in that of its input."""

    def __init__(self, precision: torch.dtype) -> None:
        super().__init__()
        self.norm, self.head, self.precision = nn.LayerNorm(8), nn.Linear(8, 4), precision

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.precision:
            raise TypeError("another precision")
        wide = (
            self.norm(x.double()).to(x.dtype) if self.precision == torch.float64 else self.norm(x.float()).to(x.dtype)
        )
        return self.head(wide) + torch.zeros(4, dtype=x.dtype)


@functools.cache
def places(count: int, dtype: torch.dtype) -> Tensor:
    return torch.linspace(0.1, 1, count, dtype=dtype) ** 0.3


class Keeping(nn.Module):
    """It keeps places by the precision that is asked for, as RT-DETR keeps its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        made = places.__wrapped__ if torch.compiler.is_compiling() else places
        return self.norm(x) * made(8, x.dtype)


def test_what_is_kept_by_precision_is_kept_for_each(tmp_path: Path):
    places.cache_clear()
    model, x = Keeping().eval(), torch.randn(3, 8)
    verdict = nd.export(model, (x,), tmp_path / "net.onnx").verdict
    assert verdict.status == "pass"
    traced = next(check for check in verdict.checks if check.name == "traced")
    assert traced.status == "pass"
    assert places(8, torch.float32).dtype == torch.float32
    assert places.cache_info().currsize == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_epsilon_by_precision_is_the_one_that_the_model_runs_with(dtype: torch.dtype, tmp_path: Path):
    torch.manual_seed(0)
    model, x = EpsilonByPrecision().to(dtype).eval(), (0.03 * torch.randn(3, 8)).to(dtype)
    assert nd.export(model, (x,), tmp_path / "net.onnx").verdict.status == "pass"
    model.single, model.below = model.below, model.single
    assert nd.verify(model, tmp_path / "net.onnx", args=(x,)).status == "fail"


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_module_that_runs_in_one_precision_alone_is_judged_in_float64(precision: torch.dtype, tmp_path: Path):
    model = Refusing(precision).to(precision).eval()
    verdict = nd.export(model, (torch.randn(3, 8, dtype=precision),), tmp_path / "net.onnx").verdict
    assert (verdict.status, [check.name for check in verdict.checks if check.status == "not-exercised"]) == ("pass", [])
