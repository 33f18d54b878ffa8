"""Modules that decide and repeat by torch's own operators run in float64, their branches and bodies, too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

import normdeploy as nd
from normdeploy.verification.sides.double import float64_mode


class Parts(nn.Module):
    def __init__(self, flow: Callable[[Parts, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.flow = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), flow
        self.other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        for norm in (self.norm, self.other[1]):
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def block(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.first(x))
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.flow(self, x)


def _chosen(net: Parts, x: Tensor) -> Tensor:
    y: Tensor = net.last(torch.cond(x.sum() > 0, net.block, lambda y: net.other(y), (x,)))
    return y


def _repeated(net: Parts, x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(net.block(y))

    _, y = torch.while_loop(lambda i, _: i < 3, body, (torch.tensor(0), x))
    z: Tensor = net.last(y)
    return z


def _scanned(net: Parts, x: Tensor) -> Tensor:
    def step(held: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.tanh(held + net.first(row))
        return new, new * 1

    _, rows = scan(step, torch.zeros(x.shape[0], 4), x[None].repeat(3, 1, 1))
    y: Tensor = net.norm(rows[-1])
    return y


FLOWS = {"a choice": _chosen, "repeated": _repeated, "scanned": _scanned}


@pytest.fixture(params=FLOWS)
def net(request: pytest.FixtureRequest) -> Parts:
    torch.manual_seed(0)
    return Parts(FLOWS[request.param]).eval()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_and_bodies_are_computed_in_float64(net: Parts, sign: float) -> None:
    x = sign * torch.rand(3, 4)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # as a verdict runs them
        with float64_mode():
            found = net(x)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            expected = copy.deepcopy(net).double()(x.double())
        finally:
            torch.set_default_dtype(before)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-14)


def test_files_of_such_modules_are_proven(net: Parts, tmp_path) -> None:
    result = nd.export(net, torch.randn(4, 4), tmp_path / "net.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    norms = {row.where for row in result.ledger if row.kind == "BatchNormalization"}
    assert norms == ({"norm", "other.1"} if net.flow is _chosen else {"norm"}), "by their paths, in bodies, too"


class Gated(nn.Module):
    """One branch is taken where values are large alone, by a network whose statistics are as at its start."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.easy = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
        self.hard = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.lerp(x, torch.cond(x.mean() > 0.5, self.easy, self.hard, (x,)), 0.25)
        y: Tensor = self.head(x.mean((2, 3)))
        return y


def test_an_epsilon_in_a_branch_that_few_families_take_is_seen(tmp_path) -> None:
    torch.manual_seed(0)
    verdict = nd.export(Gated(), torch.randn(2, 3, 32, 32), tmp_path / "net.onnx").verdict
    assert verdict is not None
    assert verdict.status == "pass", verdict.summary()
    (easy,) = (site for site in verdict.sites if site.where == "easy.1")
    assert any(mutant.killed and mutant.name.startswith("epsilon") for mutant in easy.mutants)
