"""Buckets of distances come out as the module's at every distance, also where the formula meets a whole number."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd

EXACT, FARTHEST, WIDTH = 5, 20, 15
"""log(20 / 5) / log(20 / 5) * 15 is 15; by one constant it is the number below, of which 14 is left."""


def buckets(distance: Tensor) -> Tensor:
    large = EXACT + (torch.log(distance.float().clamp(1) / EXACT) / math.log(FARTHEST / EXACT) * WIDTH).long()
    return torch.where(distance < EXACT, distance, large.clamp(max=EXACT + 4 * WIDTH))


class Relative(nn.Module):
    """Attention with a bias by the bucket of each distance, as T5 has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.heads = nn.LayerNorm(8), nn.Linear(8, 16)
        self.bias = nn.Embedding(EXACT + 4 * WIDTH + 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        bias = self.bias(buckets((places[None] - places[:, None]).abs()))[..., 0]
        q, k = self.heads(self.norm(x)).chunk(2, -1)
        return torch.softmax(q @ k.transpose(1, 2) + bias, -1) @ x


def test_one_constant_would_be_another_bucket() -> None:
    """What this is about: both are the formula to rounding."""
    d = torch.tensor([20.0])
    one = torch.log(d / EXACT) * torch.tensor(WIDTH / math.log(FARTHEST / EXACT), dtype=torch.float32)
    assert int(one) != int(torch.log(d / EXACT) / math.log(FARTHEST / EXACT) * WIDTH)


def test_a_bias_by_buckets_is_the_modules_at_every_size(tmp_path: Path) -> None:
    model = Relative().eval()
    result = nd.export(model, (torch.randn(2, 7, 8),), tmp_path / "n.onnx", dynamic_shapes=({0: "batch", 1: "time"},))
    assert result.verdict.status == "pass", result.verdict.summary()
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()
    run = nd.load(tmp_path / "n.onnx")
    for size in (21, 90):
        x = torch.randn(1, size, 8)
        with torch.no_grad():
            expected = model(x)
        (found,) = run({"x": x.numpy()}).values()
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)
    kept = [row for row in result.ledger if row.action == "kept"]
    assert kept
    assert all("cut to integers" in row.reason for row in kept)


class OfInteger(nn.Module):
    def forward(self, distance: Tensor) -> Tensor:
        return buckets(distance)


class OfFloat(nn.Module):
    def forward(self, distance: Tensor) -> Tensor:
        return (torch.log(distance / EXACT) / math.log(FARTHEST / EXACT) * WIDTH).long()


@pytest.mark.parametrize("folded", [False, True])
def test_distances_that_are_fed_are_integers_or_floats(folded: bool, tmp_path: Path) -> None:
    model = OfFloat() if folded else OfInteger()
    distance = torch.arange(1, 200)
    nd.export(model, (distance.float() if folded else distance,), tmp_path / "n.onnx", verify=False)
    kinds = [node.op_type for node in onnx.load(tmp_path / "n.onnx").graph.node]
    assert kinds.count("Mul") == 1
    assert kinds.count("Div") == (1 if folded else 2)  # one stands in front of the Log
    if not folded:
        (found,) = nd.load(tmp_path / "n.onnx")({"distance": distance.numpy()}).values()
        np.testing.assert_array_equal(found, buckets(distance).numpy())


class Looked(nn.Module):
    """The best of what a table says of each word, as a bigram model has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.table(ids) * 3 + 0.5).argmax(-1)


def test_what_is_looked_up_in_a_table_is_no_such_formula(tmp_path: Path) -> None:
    result = nd.export(Looked().eval(), (torch.randint(0, 20, (2, 5)),), tmp_path / "n.onnx", verify=False)
    assert [row.action for row in result.ledger] == ["folded"]
