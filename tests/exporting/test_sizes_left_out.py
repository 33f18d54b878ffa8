"""Models that go another way beyond some batch: the file is of the example's, and is not called dynamic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd


class Deciding(nn.Module):
    """It computes something else for more than four samples."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.norm(x))
        return 2 * y if x.shape[0] > 4 else y


class InParts(Deciding):
    """It computes the same for more than four samples, in parts."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] <= 4:
            return self.linear(self.norm(x))
        return torch.cat([self.linear(self.norm(x[:2])), self.linear(self.norm(x[2:]))])


class ThreeAtLeast(Deciding):
    """It fails for fewer, whatever runs it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)) + torch.cat([x[:3], x.new_zeros(x.shape[0] - 3, 4)])


def exported(model: nn.Module, batch: int, path: Path) -> tuple[list[str], int]:
    result = nd.export(model.eval(), (torch.randn(batch, 4),), path, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    return result.notes, onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_value


@pytest.mark.parametrize(("batch", "other"), [(2, 5), (3, 5), (6, 1)])
def test_a_batch_that_forward_decides_by_is_fixed_and_told(batch: int, other: int, tmp_path: Path):
    [note], size = exported(Deciding(), batch, tmp_path / "net.onnx")
    assert size == batch
    assert f"forward computes something else for a size of {other} than for the example's" in note


@pytest.mark.parametrize(("model", "batch"), [(InParts, 2), (InParts, 6), (ThreeAtLeast, 3), (ThreeAtLeast, 6)])
def test_a_batch_stays_dynamic_where_the_other_way_is_the_same_function_or_none(
    model: type[Deciding], batch: int, tmp_path: Path
):
    network = model()
    assert exported(network, batch, tmp_path / "net.onnx") == ([], 0)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for size in (3, 9):
        x = torch.randn(size, 4)
        with torch.no_grad():
            np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], network(x).numpy(), rtol=1e-4, atol=1e-5)


class Squeezing(Deciding):
    """A batch of one loses its dimension, as any other of one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)[:, None].squeeze())


class OneAlone(Deciding):
    """It computes something else for one sample, in the same shape."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.norm(x))
        return 2 * y if x.shape[0] == 1 else y


@pytest.mark.parametrize("model", [Squeezing, OneAlone])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_batch_of_one_that_is_another_function_fixes_the_batch(
    model: type[Deciding], batch: int, tmp_path: Path
) -> None:
    network = model()
    [note], size = exported(network, batch, tmp_path / "net.onnx")
    assert size == batch
    assert "forward computes something else for a size of 1" in note
    x = torch.randn(batch, 4)
    found = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x.numpy()})[0]
    expected = network.double()(x.double()).detach().numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
