"""Modules that are called one way, raise, and are called another way: they are traced, each by its own path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.errors import TraceError


class OfSeveralKinds(nn.Module):
    """Layers of which some take lengths, as toolkits for speech call them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv1d(4, 6, 3), nn.ReLU(), nn.BatchNorm1d(6), nn.Sigmoid(), nn.LayerNorm(5)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            try:
                x = block(x, lengths=None)
            except TypeError:
                x = block(x)
        return x


class Raising(OfSeveralKinds):
    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            self.blocks[0](x, lengths=None)
        return super().forward(x)


def test_a_call_that_raises_and_is_made_anew_is_traced(tmp_path: Path):
    result = nd.export(OfSeveralKinds().eval(), (torch.randn(2, 4, 7),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert (result.verdict.status, result.notes) == ("pass", [])
    assert {row.where for row in result.ledger.rows} == {"blocks.2", "blocks.4"}


def test_a_call_that_raises_to_the_end_is_told_as_before(tmp_path: Path):
    with pytest.raises(TraceError, match="lengths"):
        nd.export(Raising().eval(), (torch.randn(2, 4, 7),), tmp_path / "net.onnx")
