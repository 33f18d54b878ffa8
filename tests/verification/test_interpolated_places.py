"""Kernels that read between places round these differently: no fault of a file, and no cloak for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import normdeploy as nd
from normdeploy.verification import verify
from normdeploy.verification.bounds.interpolation import interpolates, interpolation_terms

U = 2.0**-24
MODES = {"linear": "bilinear", "cubic": "bicubic"}


class Resized(nn.Module):
    """A convolution whose result is read between its places."""

    def __init__(self, mode: str, size: tuple[int, int]) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)
        self.mode, self.size = mode, size

    def forward(self, x: Tensor) -> Tensor:
        resized: Tensor = interpolate(self.norm(self.convolution(x)), size=self.size, mode=self.mode)
        return resized


def resize(mode: str, coordinates: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[n,c,h,w] x, int64[4] s) => (float[a,b,d,e] y) {{
        y = Resize<mode="{mode}", coordinate_transformation_mode="{coordinates}", cubic_coeff_a=-0.75>(x, , , s) }}"""
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("n", "m"), [(28, 16), (224, 64), (112, 8), (224, 256), (7, 5), (63, 7), (2, 9)])
@pytest.mark.parametrize("coordinates", ["pytorch_half_pixel", "align_corners"])
def test_an_error_of_onnxruntime_is_below_and_near_what_is_told(mode: str, n: int, m: int, coordinates: str):
    proto = resize(mode, coordinates)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal((1, 2, n, 6)), np.ones((1, 2, 6, n)), rng.standard_normal((1, 2, 5, n)) + 30):
        x = x.astype(np.float32)
        sizes = [m if size == n else size + 1 for size in x.shape[2:]]
        given = torch.from_numpy(x).double()
        want = interpolate(given, size=sizes, mode=MODES[mode], align_corners=coordinates == "align_corners")
        (found,) = session.run(None, {"x": x, "s": np.array([1, 2, *sizes])})
        node = ir.from_proto(proto).graph[0]
        assert interpolates(node)
        told = interpolation_terms(node, given, want.shape)
        assert told is not None
        error = (torch.from_numpy(found).double() - want).abs()
        assert (error <= U * (4 * want.abs() + 2.5 * told)).all(), (error / (U * told)).max()
        assert told.max() <= 40 * (n + 10) * x.max()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("given", "size"), [((28, 28), (16, 16)), ((112, 14), (8, 20)), ((7, 7), (5, 9))])
def test_a_resize_that_torch_places_exactly_passes(tmp_path: Path, mode: str, given: tuple[int, int], size):
    torch.manual_seed(0)
    model = Resized(mode, size).eval()
    result = nd.export(model, torch.randn(2, 2, *given), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("name", "value"), [("coordinate_transformation_mode", "asymmetric"), ("mode", None), ("cubic_coeff_a", -0.7499)]
)
def test_what_reads_elsewhere_fails(tmp_path: Path, mode: str, name: str, value: str | float | None):
    if name == "cubic_coeff_a" and mode == "bilinear":
        pytest.skip("a linear Resize has none")
    torch.manual_seed(0)
    model, x = Resized(mode, (16, 16)).eval(), torch.randn(2, 2, 28, 28)
    path = nd.export(model, x, tmp_path / "net.onnx", verify=False).path
    proto = onnx.load(path)
    (node,) = [node for node in proto.graph.node if node.op_type == "Resize"]
    other = "cubic" if mode == "bilinear" else "linear"
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    changed = onnx.helper.make_attribute(name, other if value is None else value)
    del node.attribute[:]
    node.attribute.extend([*kept, changed])
    onnx.save(proto, path)
    assert verify(model, path, args=(x,), level="quick").status == "fail"
