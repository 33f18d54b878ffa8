"""Weights computed by operators that ONNX has no form of: the file holds their value, the verdict stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import normdeploy as nd
from normdeploy.errors import TraceError
from normdeploy.exporting.trace import trace
from normdeploy.graph import load_graph


def settled(model: nn.Module, x: torch.Tensor) -> nn.Module:
    model.train()
    with torch.no_grad():
        model(x * 2 + 1)
    return model.eval()


class Whitened(nn.Module):
    """A score under a Gaussian: the inverse of the factor of a covariance, its determinant, and projections."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.factor = nn.Parameter(torch.eye(4) + torch.randn(4, 4, generator=draw) / 5)
        self.register_buffer("basis", torch.randn(6, 4, generator=draw))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        covariance = self.factor @ self.factor.T
        whitened = self.norm(x) @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        left, kept, right = torch.linalg.svd(self.basis, full_matrices=False)
        return whitened.square().sum(-1) + torch.logdet(covariance), x @ (left * kept.clamp(max=1) @ right).T


@pytest.mark.parametrize("by", ["matrix_exp", "cayley", "householder"])
def test_an_orthogonal_weight_is_written_as_its_value(by: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    turned = parametrizations.orthogonal(nn.Linear(5, 5), orthogonal_map=by)
    model = nn.Sequential(nn.LayerNorm(5), turned, nn.BatchNorm1d(5), nn.Linear(5, 2))
    x = torch.randn(3, 5)
    found = nd.export(settled(model, x), (x,), tmp_path / "net.onnx", verify="quick")
    assert found.verdict is not None
    assert found.verdict.passed, found.verdict.summary()
    assert [node.op_type for node in load_graph(tmp_path / "net.onnx").graph] == ["LayerNormalization", "Gemm"]
    assert any(re.search(r"1\.parametrizations\.weight\.0 .*the file holds its value", note) for note in found.notes)


def test_factors_inverses_and_singular_values_are_computed_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    model = settled(Whitened(), x)
    found = nd.export(model, (x,), tmp_path / "net.onnx", verify="quick")
    assert found.verdict is not None
    assert found.verdict.passed, found.verdict.summary()
    with torch.no_grad():
        want = [part.numpy() for part in model(x)]
    got = nd.load(tmp_path / "net.onnx")(x.numpy())
    for mine, true in zip(got.values() if isinstance(got, dict) else got, want, strict=True):
        np.testing.assert_allclose(mine, true, rtol=1e-5, atol=1e-5)


def test_a_value_is_computed_in_float64_and_rounded_once() -> None:
    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1 / (np.arange(4)[:, None] + np.arange(4) + 1)).float())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.linalg.inv(self.weight)

    model = Inverse().eval()  # Hilbert's matrix: float32's own inverse is wrong in the third digit
    graph = trace(model, (torch.ones(2, 4),)).model.graph
    (value,) = [one.const_value for one in graph.initializers.values() if "inv" in str(one.name)]
    assert value is not None
    want = np.linalg.inv(model.weight.detach().double().numpy())
    np.testing.assert_allclose(value.numpy(), want, rtol=1e-7)
    assert not np.allclose(torch.linalg.inv(model.weight).detach().numpy(), want, rtol=1e-5)


def test_what_has_a_translation_stays_as_its_author_wrote_it() -> None:
    model = parametrizations.weight_norm(nn.Linear(4, 4)).eval()
    graph = trace(model, (torch.ones(2, 4),)).model.graph
    assert {"ReduceL2", "Div"} & {node.op_type for node in graph}


class Drawn(nn.Module):
    """An inverse of what is drawn anew at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.linalg.inv(self.weight + torch.rand_like(self.weight) / 100)


class Counted(nn.Module):
    """An inverse of state that every call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.eye(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.add_(0.1)
        return x @ torch.linalg.inv(self.weight)


class OfInput(nn.Module):
    """An inverse of the input's covariance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.T @ x + torch.eye(4))


@pytest.mark.parametrize("model", [Drawn(), Counted(), OfInput()], ids=["drawn", "written", "of the input"])
def test_what_is_no_constant_is_an_error_that_names_it(model: nn.Module) -> None:
    with pytest.raises(TraceError, match=r"no ONNX translation.*linalg_inv"):
        trace(model.eval(), (torch.randn(5, 4),))
