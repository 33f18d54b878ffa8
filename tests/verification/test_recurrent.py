"""Recurrent networks: their operators hold functions that are accurate only absolutely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify


class Recurrent(nn.Module):
    """A normalized sequence through two recurrent layers; offsets of 1e3 saturate their gates."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        nn.init.normal_(self.norm.running_mean)
        self.net = kind(6, 12, batch_first=True, num_layers=2)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.net(self.norm(x.transpose(1, 2)).transpose(1, 2))
        out: Tensor = self.head(y[:, -1])
        return out


class Stateful(nn.Module):
    """A recurrent layer whose state is an input: an offset of 1e3 reaches the cell, where it multiplies gates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.net, self.head = nn.LayerNorm(8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.net(self.norm(x), (h, c))
        return self.head(y), h, c


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_state_as_input_is_no_failure(seed: int, tmp_path: Path):
    torch.manual_seed(seed)
    args = torch.randn(2, 5, 8), torch.randn(1, 2, 16), torch.randn(1, 2, 16)
    rows = {"x": {0: "rows"}, "h": {1: "rows"}, "c": {1: "rows"}}
    result = nd.export(Stateful().eval(), args, tmp_path / "net.onnx", dynamic_shapes=rows)
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
def test_saturated_gates_are_no_failure(kind: type[nn.RNNBase], tmp_path: Path):
    torch.manual_seed(0)
    model, args = Recurrent(kind).eval(), (torch.randn(2, 5, 6),)
    traced = trace(model, args)
    rewritten = rewrite(traced.model)
    path = tmp_path / "net.onnx"
    save_graph(rewritten.model.clone(), path)
    assert [row.action for row in rewritten.ledger] == ["folded"]
    verdict = verify(model, path, args=args, traced=traced, rewritten=rewritten)
    assert verdict.status == "pass", verdict.summary()
