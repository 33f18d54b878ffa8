"""Each hand-written convention, and ours configured to it, exports like the stock module and is equivalent to itself.

What remains of a hand-written BatchNorm behind a linear operator must be, operator for operator, what remains of the
stock module: nothing. What remains of a LayerNorm must be what its convention needs.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.conformance import by_hand
from normdeploy.nn import BatchNorm, LayerNorm

WIDTH = 6


class Rows(nn.Module):
    """Linear, norm, tanh, linear on (N, 5)."""

    def __init__(self, norm: object) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, WIDTH), norm, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


class Images(nn.Module):
    """Convolution, norm, tanh, convolution on (N, 2, 5, 5)."""

    def __init__(self, norm: object) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, WIDTH, 3, padding=1), norm
        self.last = nn.Conv2d(WIDTH, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


BATCH_ROWS = {
    "B1 by hand": lambda: by_hand.B1(WIDTH),
    "B1": lambda: BatchNorm(WIDTH, correction=1),
    "B2 by hand": lambda: by_hand.B2(WIDTH),
    "B2": lambda: BatchNorm(WIDTH, eps=1e-6, correction=1),
    "B4 by hand": lambda: by_hand.B4(WIDTH, 2),
    "B4": lambda: BatchNorm(WIDTH, running_correction=0),
    "B6": lambda: nn.BatchNorm1d(WIDTH),
}
BATCH_IMAGES = {
    "B4 by hand": lambda: by_hand.B4(WIDTH, 4),
    "B5 by hand": lambda: by_hand.B5(WIDTH),
    "B5": lambda: BatchNorm(WIDTH, running_correction=0),
    "B6": lambda: nn.BatchNorm2d(WIDTH),
    "InstanceNorm with running statistics": lambda: nn.InstanceNorm2d(WIDTH, affine=True, track_running_stats=True),
}
LAYER_ROWS = {
    "L1 by hand": (lambda: by_hand.L1(WIDTH), True),
    "L1": (lambda: LayerNorm(WIDTH, correction=1), True),
    "L3 by hand": (lambda: by_hand.L3(1e-5), True),
    "L4 by hand": (lambda: by_hand.L4(WIDTH), False),
    "L4": (lambda: LayerNorm(WIDTH, eps=1e-6, correction=1, eps_on="deviation"), False),
    "L5": (lambda: nn.LayerNorm(WIDTH), True),
}


def _trained(model: nn.Module, x: Tensor) -> nn.Module:
    """Give a model statistics, scales and shifts as training does, the deviating ones included."""
    model.train()
    optimizer = torch.optim.SGD([*model.parameters(), *_plain_parameters(model)], lr=0.3)
    for step in range(12):
        optimizer.zero_grad()
        (model(x * (1 + 0.1 * step) + 0.3) ** 2).mean().backward()
        optimizer.step()
    return model


def _plain_parameters(model: nn.Module) -> list[Tensor]:
    norm = model.norm
    return [] if isinstance(norm, nn.Module) else [value for value in vars(norm).values() if _learned(value)]


def _learned(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _exported(model, x, tmp_path):
    result = nd.export(model, x[:2], tmp_path / "net.onnx", verify="quick")
    assert result.verdict.status == "pass"
    return result, [node.op_type for node in result.program.graph]


@pytest.mark.parametrize("convention", BATCH_ROWS)
def test_batch_norms_of_rows_leave_no_trace(convention, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(32, 5)
    model = _trained(Rows(BATCH_ROWS[convention]()), x)
    result, operators = _exported(model, x, tmp_path)
    assert operators == ["Gemm", "Tanh", "Gemm"]
    assert [row.action for row in result.ledger] == ["folded"]


@pytest.mark.parametrize("convention", BATCH_IMAGES)
def test_batch_norms_of_images_leave_no_trace(convention, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(8, 2, 5, 5)
    model = _trained(Images(BATCH_IMAGES[convention]()), x)
    result, operators = _exported(model, x, tmp_path)
    assert operators == ["Conv", "Tanh", "Conv"]
    assert [row.action for row in result.ledger] == ["folded"]


@pytest.mark.parametrize("convention", LAYER_ROWS)
def test_layer_norms_become_what_their_convention_needs(convention, tmp_path):
    build, single = LAYER_ROWS[convention]
    torch.manual_seed(0)
    x = torch.randn(32, 5)
    model = _trained(Rows(build()), x)
    result, operators = _exported(model, x, tmp_path)
    assert [row.action for row in result.ledger] == ["fused"]
    if single:
        assert operators == ["Gemm", "LayerNormalization", "Tanh", "Gemm"]
    else:  # epsilon beside the deviation is no LayerNormalization: exact, in fewer passes than the nine written
        assert len(operators) - 3 < 9


def test_the_mistaken_layer_norm_is_explained_and_not_exported_silently():
    torch.manual_seed(0)
    x = torch.randn(4, 5)
    model = _trained(Rows(by_hand.L2(WIDTH)), x)
    findings = [finding for finding in nd.inspect(model, x) if "norm" in finding.where]
    assert findings
    assert any("row" in finding.what or "batch" in finding.what for finding in findings)
