"""nn.EmbeddingBag, LSTM with projections: right in onnxruntime, or refused by name."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.errors import TraceError
from normdeploy.exporting.trace import trace


class Bags(nn.Module):
    """Several bags on the same indices: an export takes seconds."""

    def __init__(self, bags: list[nn.EmbeddingBag]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(bags)

    def forward(self, indices: Tensor, offsets: Tensor, weights: Tensor) -> list[Tensor]:
        return [bag(indices, offsets, weights if bag.mode == "sum" else None) for bag in self.bags]


class Rows(Bags):
    """Bags of equal length: one row of indices each."""

    def forward(self, indices: Tensor) -> list[Tensor]:  # type: ignore[override] # a model of its own
        return [bag(indices) for bag in self.bags]


def run(model: nn.Module, example: tuple[Tensor, ...], shapes: dict[str, Any], *others: tuple[Tensor, ...]) -> None:
    traced = trace(model.eval(), example, dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(ir.to_proto(traced.model).SerializeToString(), None)
    for arguments in (example, *others):
        feeds = {i.name: a.numpy() for i, a in zip(session.get_inputs(), arguments, strict=True)}
        with torch.no_grad():
            wanted = model(*arguments)
        for expected, found in zip(wanted, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def bags(last: bool) -> list[nn.EmbeddingBag]:
    torch.manual_seed(0)
    return [
        nn.EmbeddingBag(20, 6, mode=mode, padding_idx=padding, include_last_offset=last)
        for mode, padding in itertools.product(("sum", "mean", "max"), (None, 3))
    ]


@pytest.mark.parametrize("last", [False, True])
def test_bags_of_any_length_with_empty_ones_and_padding(last: bool):
    end = [10] if last else []
    example = torch.randint(0, 20, (10,)), torch.tensor([0, 4, 4, 7, *end]), torch.randn(10)
    padded = torch.tensor([3, 3, 1, 2, 3, 5]), torch.tensor([0, 2, *([6] if last else [])]), torch.randn(6)
    shapes = {"indices": {0: "n"}, "offsets": {0: "bags"}, "weights": {0: "n"}}
    run(Bags(bags(last)), example, shapes, padded)


def test_rows_of_equal_length():
    shapes = {"indices": {0: "batch", 1: "length"}}
    run(Rows(bags(False)), (torch.randint(0, 20, (4, 5)),), shapes, (torch.randint(0, 20, (2, 7)),))


def test_a_bag_is_proven(tmp_path):
    model = nn.EmbeddingBag(20, 6, padding_idx=3)
    result = nd.export(model, torch.randint(0, 20, (4, 5)), tmp_path / "bag.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projections_are_refused_by_the_modules_name():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(4, 8, proj_size=3)

        def forward(self, x: Tensor) -> Tensor:
            return self.memory(x)[0]

    with pytest.raises(TraceError, match=r"'memory'[\s\S]*proj_size"):
        trace(Net(), torch.randn(5, 2, 4))


def test_an_lstm_without_projections_is_translated():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Tensor) -> list[Tensor]:
            y, (h, c) = self.memory(x)
            return [y, h, c]

    run(Net(), (torch.randn(3, 5, 4),), {"x": {0: "batch"}}, (torch.randn(2, 5, 4),))
