"""Nearest neighbours of a size: onnxruntime's Resize takes others where m / n is rounded and n / m is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import normdeploy as nd
from normdeploy.exporting.translations.nearest_places import places_read, resized_elsewhere


class Nearest(nn.Module):
    """A convolution, a norm, and the nearest neighbours of their result."""

    def __init__(self, axes: int, **wanted: object) -> None:
        super().__init__()
        self.convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1](2, 3, 1)
        self.norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1](3)
        self.wanted = wanted

    def forward(self, x: Tensor) -> Tensor:
        taken: Tensor = interpolate(self.norm(self.convolution(x)), mode="nearest", **self.wanted)  # type: ignore[arg-type]
        return taken


@pytest.mark.parametrize(
    ("given", "size"),
    [((28,), (16,)), ((28, 14), (16, 16)), ((21, 5), (12, 10)), ((6, 7), (6, 4)), ((7, 4, 5), (4, 4, 6))],
)
def test_neighbours_are_those_that_torch_takes(tmp_path: Path, given: tuple[int, ...], size: tuple[int, ...]):
    torch.manual_seed(0)
    model, x = Nearest(len(given), size=size).eval(), torch.randn(2, 2, *given)
    result = nd.export(model, x, tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed
    assert [row.action for row in result.ledger if "Norm" in row.kind] == ["folded"]
    session = onnxruntime.InferenceSession(str(result.path), providers=["CPUExecutionProvider"])
    x = torch.randn(3, 2, *given)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model.double()(x.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", [{"scale_factor": 2.0}, {"scale_factor": (0.5, 3.0)}, {"size": (12, 9)}])
def test_what_resize_takes_right_stays_a_resize(tmp_path: Path, wanted: dict[str, object]):
    result = nd.export(Nearest(2, **wanted).eval(), torch.randn(2, 2, 6, 3), tmp_path / "net.onnx", verify="quick")
    assert "Resize" in {node.op_type for node in onnx.load(result.path).graph.node}


def test_places_are_those_of_torch_and_of_onnxruntime():
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 18]> g (float[1,1,n] x, int64[3] s) => (float[1,1,m] y) {
            y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , , s) }"""
        ).SerializeToString()
    )
    for n in range(1, 40):
        x = torch.arange(n, dtype=torch.float32).reshape(1, 1, n)
        for m in range(1, 40):
            single, double = (interpolate(x.to(t), size=m).reshape(-1).tolist() for t in (torch.float32, torch.float64))
            (resized,) = session.run(None, {"x": x.numpy(), "s": np.array([1, 1, m])})
            assert places_read(n, m) == single
            assert resized_elsewhere(n, m) == (single == double and single != resized.reshape(-1).tolist()), (n, m)
