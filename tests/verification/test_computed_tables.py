"""A table that a module computes, stored by another tool as float32 computes it: right, where no number is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from normdeploy.exporting.trace import Traced, trace
from normdeploy.verification import verify


class Waves(nn.Module):
    """What a layer makes of sines and cosines of places is added to what is read (EdgeNeXt, DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position, self.out = nn.Linear(8, 48), nn.Linear(64, 48), nn.Linear(48, 4)

    def table(self, tokens: int) -> Tensor:
        """Return a row for each place."""
        angles = (
            torch.arange(tokens, dtype=self.position.weight.dtype)[:, None] * 6.3 / 10000 ** (torch.arange(32) / 32)
        )
        return self.position(torch.cat([angles.sin(), angles.cos()], 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.embed(x) + self.table(x.shape[1])))


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Waves, Tensor, Path, Traced]:
    torch.manual_seed(0)
    model, x = Waves().eval(), torch.randn(1, 40, 8)
    path = tmp_path_factory.mktemp("waves") / "plain.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, external_data=False)
    return model, x, path, trace(model, (x,))


def stored_table(proto: onnx.ModelProto) -> onnx.TensorProto:
    return next(t for t in proto.graph.initializer if tuple(t.dims) == (40, 48))


def test_the_tool_rounded_more_than_once(waves: tuple[Waves, Tensor, Path, Traced]) -> None:
    """Else nothing is asked here: numbers are further off than half a unit, in float64, and by less than 1e-5."""
    model, _, path, _ = waves
    stored = numpy_helper.to_array(stored_table(onnx.load(path))).astype(np.float64)
    with torch.no_grad():
        right = model.double().table(40).numpy()
    model.float()
    off = np.abs(stored - right)
    assert 64 * np.spacing(np.abs(right).astype(np.float32)).min() < off.max() < 1e-5


def test_it_passes(waves: tuple[Waves, Tensor, Path, Traced]) -> None:
    model, x, path, traced = waves
    verdict = verify(model, path, args=(x,), level="quick", traced=traced)
    assert verdict.status == "pass", verdict.summary()


@pytest.mark.parametrize("damage", ["one number", "two places", "float16"])
def test_a_damaged_one_does_not(damage: str, waves: tuple[Waves, Tensor, Path, Traced], tmp_path: Path) -> None:
    model, x, path, traced = waves
    proto = onnx.load(path)
    tensor = stored_table(proto)
    array = numpy_helper.to_array(tensor).copy()
    if damage == "one number":
        array[7, 5] *= np.float32(1.001)
    elif damage == "two places":
        array[[7, 8]] = array[[8, 7]]
    else:
        array = array.astype(np.float16).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, tmp_path / "damaged.onnx")
    verdict = verify(model, tmp_path / "damaged.onnx", args=(x,), level="quick", traced=traced)
    assert verdict.status == "fail", verdict.summary()
