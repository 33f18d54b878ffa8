"""Files of torch's older exporter take the floats and integers of forward as inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd


class Scaled(nn.Module):
    """A layer whose result is scaled by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor, scale: float = 2.0, more: int = 3) -> Tensor:
        result: Tensor = self.norm(self.layer(x)) * scale + more
        return result


@pytest.fixture
def exported(tmp_path: Path) -> tuple[nn.Module, Tensor, Path]:
    torch.manual_seed(0)
    model, x, path = Scaled().eval(), torch.randn(2, 6), tmp_path / "net.onnx"
    torch.onnx.export(model, (x, 2.0, 3), path, dynamo=False, opset_version=17, verbose=False)
    assert len(onnx.load(path).graph.input) == 3
    return model, x, path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its older exporter
@pytest.mark.parametrize("level", ["quick", "default"])
@pytest.mark.parametrize("given", [{}, {"scale": 0.5}, {"more": -1, "scale": 4.0}])
def test_numbers_are_fed_given_or_by_default(
    exported: tuple[nn.Module, Tensor, Path], level: str, given: dict[str, Any]
) -> None:
    model, x, path = exported
    verdict = nd.verify(model, path, args=x, kwargs=given, level=level)
    assert verdict.status == "pass", verdict.summary()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrong_file_still_fails(exported: tuple[nn.Module, Tensor, Path]) -> None:
    model, x, path = exported
    proto = onnx.load(path)
    (weights,) = [t for t in proto.graph.initializer if list(t.dims) == [6, 6]]
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * 1.001, weights.name))
    onnx.save(proto, path)
    assert nd.verify(model, path, args=x, level="quick").status == "fail"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tensor_that_is_missing_is_named(exported: tuple[nn.Module, Tensor, Path]) -> None:
    model, x, path = exported
    proto = onnx.load(path)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("another", onnx.TensorProto.FLOAT, [2]))
    onnx.save(proto, path)
    with pytest.raises(nd.errors.InputError, match="expected one tensor per graph input"):
        nd.verify(model, path, args=x, level="quick")
