"""Channels that a BatchNorm scales by 0, or by next to nothing: the map leaves, and the verifier agrees."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation


def conv(outs: int, ins: int = 3, kernel: int = 1, padding: int = 0) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, padding=padding)


class Joined(nn.Module):
    """A stream with a norm of its own beside a branch with another one (RepVGG)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = conv(6), nn.BatchNorm2d(6)
        self.branch = nn.Sequential(conv(6, 6, 3, padding=1), nn.ReLU(), conv(6, 6), nn.BatchNorm2d(6))
        self.last = nn.Sequential(nn.BatchNorm2d(6), conv(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last((self.norm(x) + self.branch(x)).relu())


NETWORKS = {
    "behind a ReLU": (lambda: nn.Sequential(conv(6), nn.ReLU(), nn.BatchNorm2d(6), conv(2, 6)), 0),
    "behind a maximum": (lambda: nn.Sequential(conv(6), nn.MaxPool2d(2), nn.BatchNorm2d(6), conv(2, 6)), 0),
    "in front of a classifier": (
        lambda: nn.Sequential(conv(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 2)),
        0,
    ),
    "in front of a ReLU": (lambda: nn.Sequential(conv(6), nn.BatchNorm2d(6), nn.ReLU(), conv(2, 6)), 0),
    "in front of a padded kernel": (
        lambda: nn.Sequential(conv(6), nn.BatchNorm2d(6), nn.ReLU(), conv(2, 6, 3, padding=1)),
        0,
    ),
    "twice in a row, and behind it": (
        lambda: nn.Sequential(conv(6), nn.BatchNorm2d(6), nn.BatchNorm2d(6), nn.ReLU(), nn.BatchNorm2d(6), conv(2, 6)),
        0,
    ),
    "behind one that stays": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3), conv(2)), 1),
    "where a stream and a branch are joined": (Joined, 2),
    "behind a layer over another axis": (lambda: nn.Sequential(conv(6), nn.Linear(6, 4), nn.BatchNorm2d(6)), 0),
    "behind a row of kernels and a layer over another axis": (
        lambda: nn.Sequential(conv(6), nn.Conv2d(6, 6, (3, 1), groups=6), nn.Linear(6, 4), nn.BatchNorm2d(6)),
        0,
    ),
}


def scaled(network: nn.Module, scale: float) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.weight.data.uniform_(0.5, 1.5, generator=generator)
            part.weight.data[::3] = scale
            part.bias.data.normal_(generator=generator)
            part.running_mean.normal_(generator=generator)
            part.running_var.uniform_(0.5, 2.0, generator=generator)
    return network.eval()


@pytest.mark.parametrize("scale", [0.0, 1e-9])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_scaled_by_nothing_is_folded_and_confirmed(name, scale):
    torch.manual_seed(0)
    made, kept = NETWORKS[name]
    network = scaled(made(), scale)
    x = torch.randn(2, 3, 6, 6)
    traced = trace(network, (x,))
    result = rewrite(traced.model)
    if scale and made is Joined:
        kept = 0  # what a norm of the stream scales by 0, its other reader would have to undo
    assert sum(row.action == "kept" for row in result.ledger) == kept
    expected = copy.deepcopy(network).double()(x.double()).detach().numpy()
    (found,) = Evaluator(result.model).run({str(result.model.graph.inputs[0].name): x.numpy()}).values()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    given = str(traced.model.graph.inputs[0].name)
    report = check_derivation(traced.model, result.model, result.derivation, [{given: (n, 3, 6, 6)} for n in (2, 3)])
    assert report.confirmed, [(row.name, row.reason) for row in report.open]


def test_shifts_far_beyond_what_they_shift_are_no_fault():
    """What is added has shifts that cancel, 1e8 times as large as the values: float64 rounds these away."""
    torch.manual_seed(0)
    network = scaled(Joined(), 1.0)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.bias.data *= 1e8
    x = torch.randn(2, 3, 6, 6)
    result = rewrite(trace(network, (x,)).model)
    assert not any(row.action == "kept" for row in result.ledger)
    expected = copy.deepcopy(network).double()(x.double()).detach().numpy()
    (found,) = Evaluator(result.model).run({str(result.model.graph.inputs[0].name): x.numpy()}).values()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6 * np.abs(expected).max())


def test_a_map_stays_where_nothing_but_rounding_could_be_checked():
    torch.manual_seed(0)
    network = scaled(Joined(), 1.0)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.weight.data *= 1e-20
    x = torch.randn(2, 3, 6, 6)
    result = rewrite(trace(network, (x,)).model)
    assert any(row.action == "kept" for row in result.ledger)
    expected = copy.deepcopy(network).double()(x.double()).detach().numpy()
    (found,) = Evaluator(result.model).run({str(result.model.graph.inputs[0].name): x.numpy()}).values()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6 * np.abs(expected).max())


class Gated(nn.Module):
    """Residual blocks, the second with an attention whose gate is 0, as it is before training (fastai's XResNet)."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(6, 3, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.first, self.second, self.third = (self.block(6), self.block(6), self.block(8))
        self.rows = nn.Conv1d(6, 6, 1, bias=False)
        self.beside = nn.Sequential(nn.AvgPool2d(2), conv(8, 6), nn.BatchNorm2d(8))
        self.third[0].stride, self.gate = (2, 2), nn.Parameter(torch.tensor([gate]))

    @staticmethod
    def block(outs: int) -> nn.Sequential:
        first, last = conv(outs, 6, 3, padding=1), conv(outs, outs, 3, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(outs), nn.ReLU(), last, nn.BatchNorm2d(outs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = (x + self.first(x)).relu()
        rows = self.second(x).flatten(2)
        attended = torch.bmm(torch.bmm(rows, rows.mT), self.rows(rows))
        x = (x + (self.gate * attended + rows).view_as(x)).relu()
        return (self.third(x) + self.beside(x)).relu()


@pytest.mark.parametrize("gate", [0.0, 0.3])
def test_a_gate_of_nothing_keeps_no_norm_beside_it(gate: float):
    """Each norm that the gate's 0 passed by had been told to stay, one after the other, and the gate at last."""
    torch.manual_seed(0)
    network = scaled(Gated(gate), 0.7)
    x = torch.randn(2, 3, 10, 10)
    result = rewrite(trace(network, (x,)).model)
    kept = [row for row in result.ledger if row.action == "kept"]
    assert all("a scale of 0" in row.reason for row in kept)
    assert len(kept) <= (gate == 0)
    assert not any(row.kind == "BatchNormalization" for row in kept)
    expected = copy.deepcopy(network).double()(x.double()).detach().numpy()
    (found,) = Evaluator(result.model).run({str(result.model.graph.inputs[0].name): x.numpy()}).values()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
