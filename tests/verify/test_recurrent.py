"""Recurrent networks: their operators hold functions that are accurate only absolutely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from normdeploy.export.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verify import verify


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
