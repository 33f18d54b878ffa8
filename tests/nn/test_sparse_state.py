"""Sparse tensors among a model's buffers: they are left as they are, read or not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.nn.contents import Contents, same_numbers

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def sparse(layout: torch.layout, numbers: Tensor) -> Tensor:
    return numbers.to_sparse(layout=layout)


class Aligned(nn.Module):
    """Says in a sparse buffer which of its heads align words with sounds, as Whisper does."""

    def __init__(self, layout: torch.layout, *, reads: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.reads = nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), reads
        self.register_buffer("heads", sparse(layout, torch.tensor([[0.0, 1], [1, 0]])), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return y * self.heads.to_dense()[0, 1] if self.reads else y


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse C:UserWarning")
def test_a_sparse_buffer_that_is_not_read_is_no_matter(layout: torch.layout, tmp_path: Path):
    model = Aligned(layout, reads=False).eval()
    result = nd.export(model, (torch.randn(2, 3, 8),), tmp_path / "net.onnx", verify="quick")
    assert (result.notes, result.verdict and result.verdict.status) == ([], "pass")
    assert model.heads.layout == layout
    assert model.heads.to_dense().tolist() == [[0, 1], [1, 0]]


def test_one_that_is_read_is_a_constant_of_the_file(tmp_path: Path):
    model = Aligned(torch.sparse_coo, reads=True).eval()
    result = nd.export(model, (torch.randn(2, 3, 8),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("written", [0.0, torch.finfo(torch.float32).max, torch.finfo(torch.float32).min])
def test_what_is_no_finite_number_is_given_back_too(number: float, written: float):
    tensor = torch.tensor([number, 1.0])
    held, before = Contents([tensor]), tensor.clone()
    assert same_numbers(tensor, before)
    tensor[0] = written
    assert not same_numbers(tensor, before)
    held.restore()
    assert same_numbers(tensor, before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse C:UserWarning")
def test_what_a_sparse_tensor_holds_is_compared_and_given_back(layout: torch.layout):
    tensor = sparse(layout, torch.tensor([[0.0, 2], [3, 0]]))
    held = Contents([tensor])
    values = tensor._values() if layout is torch.sparse_coo else tensor.values()
    values.mul_(2)
    assert not same_numbers(tensor, sparse(layout, torch.tensor([[0.0, 2], [3, 0]])))
    held.restore()
    assert same_numbers(tensor, sparse(layout, torch.tensor([[0.0, 2], [3, 0]])))
    assert not same_numbers(tensor, tensor.to_dense())
