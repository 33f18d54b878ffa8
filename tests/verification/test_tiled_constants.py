"""Constants that reach a product through other operators: of sizes (DeBERTa's relative positions), of sequences."""

from pathlib import Path

import torch
from torch import nn

import normdeploy as nd


class Relative(nn.Module):
    """Scores against positions that a layer makes of a table, once per sample; the queries have another reader."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        key = self.key(self.positions).unsqueeze(0).repeat(x.shape[0], 1, 1)
        return torch.cat([torch.bmm(query, key.transpose(1, 2)) / 24**0.5, query], -1)


def test_a_scale_that_goes_into_a_tiled_constant_is_proven_for_every_input(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = nd.export(Relative().eval(), torch.randn(2, 3, 8), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed, result.verdict.summary()
    assert [row.action for row in result.ledger] == ["folded"]
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()


class Turned(nn.Module):
    """Queries turned by their positions: one table holds both factors, and is split in each call (EVA's)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(3, 16))
        self.query = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sines, cosines = self.table.split(8, -1)
        query = self.query(x)
        return torch.cat([(query * cosines + query.flip(-1) * sines) / 24**0.5, x], -1)


def test_parts_of_a_constant_that_the_trace_splits_are_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = nd.export(Turned().eval(), torch.randn(2, 3, 8), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()


class Bilinear(nn.Module):
    """A stock Bilinear lays its weights by sizes that the trace reads; a BatchNorm's scale goes into them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(5, 8)
        self.norm, self.both = nn.BatchNorm1d(8, affine=False), nn.Bilinear(8, 8, 4)
        self.norm.running_mean, self.norm.running_var = torch.randn(8), torch.rand(8) + 0.1

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.both(self.first(x), self.norm(self.second(y)))
        return out


def test_weights_that_the_trace_lays_by_sizes_are_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 6), torch.randn(2, 5))
    result = nd.export(Bilinear().eval(), inputs, tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()
    assert [row.action for row in result.ledger if row.where == "norm"] == ["folded"]
