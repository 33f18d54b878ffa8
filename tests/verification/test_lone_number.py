"""One stored number among copies that is some units off: wrong by itself, however little of a result it moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import verify

Write = Callable[..., Path]

TWO_LAYERS = """g (float[N,8] x) => (float[N,8] y) {
    a = MatMul(x, w) b = Add(a, c) r = Relu(b) n = LayerNormalization<axis=-1>(r, s, t)
    v = Identity(w) d = MatMul(n, v) e = Add(d, c) q = Tanh(e) y = MatMul(q, u) }"""
"""Two layers share weights, as layers that were cloned do in files of torch's older exporter."""


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 8), "u": (8, 8), "c": (8,), "s": (8,), "t": (8,)}
    return {name: rng.uniform(0.1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def off(array: np.ndarray, units: int) -> np.ndarray:
    """Return an array of which one number is some units in the last place off."""
    found = array.copy()
    found.reshape(-1).view(np.int32)[3] += units
    return found


@pytest.mark.parametrize("name", list(constants()))
@pytest.mark.parametrize(("units", "status"), [(0, "pass"), (1, "pass"), (2, "fail"), (32, "fail")])
def test_a_number_among_copies(write: Write, name: str, units: int, status: str) -> None:
    known = constants()
    right = write(TWO_LAYERS, "right", **known)
    verdict = verify(right, write(TWO_LAYERS, "file", **{**known, name: off(known[name], units)}), level="quick")
    assert verdict.status == status, verdict.summary()
    told = {(0, "pass"): "pass", (1, "pass"): "note"}.get((units, status), "fail")
    assert verdict.check("derivation").status == told
    if status == "fail":
        assert f"(1 of {known[name].size} numbers differ)" in verdict.check("derivation").detail


class Net(nn.Module):
    """A norm that other tools fold in float32, and a layer that they copy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.inner, self.head = nn.Conv2d(6, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.inner(self.norm(self.conv(x)).relu()).relu().flatten(2).mean(2))
        return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its older exporter
@pytest.mark.parametrize(("units", "status"), [(0, "pass"), (32, "fail")])
@pytest.mark.parametrize("name", ["head.weight", "head.bias", "inner.weight"])
def test_a_copy_beside_what_another_tool_folded(tmp_path: Path, name: str, units: int, status: str) -> None:
    """Operators behind one that is right within another rounding are held against the source all the same."""
    torch.manual_seed(0)
    model, x, path = Net(), torch.randn(2, 3, 6, 6), tmp_path / "torch.onnx"
    nn.init.uniform_(model.norm.weight, 0.5, 1.5)
    nn.init.normal_(model.norm.bias, 0, 0.3)
    model(torch.randn(64, 3, 6, 6))
    model.eval()
    torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17, verbose=False)
    proto = onnx.load(path)
    assert not [node for node in proto.graph.node if node.op_type == "BatchNormalization"]
    (stored,) = [t for t in proto.graph.initializer if t.name == name]
    stored.CopyFrom(numpy_helper.from_array(off(numpy_helper.to_array(stored), units), name))
    onnx.save(proto, path)
    verdict = nd.verify(model, path, args=x, level="quick")
    assert verdict.status == status, verdict.summary()
    assert ("right within another rounding" in verdict.check("derivation").detail) == (status == "pass")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its older exporter
@pytest.mark.parametrize(("units", "status"), [(0, "pass"), (32, "fail")])
@pytest.mark.parametrize("seed", range(4))
def test_a_folded_shift_that_cancels_is_rounded_as_its_terms_are(tmp_path: Path, seed: int, units: int, status: str):
    """beta - mean gamma / sqrt(var) is 1e-3, its terms 0.75: folded in float32 it is as far off as these are."""
    torch.manual_seed(seed)
    model, x, path = Net(), torch.randn(2, 3, 6, 6), tmp_path / "torch.onnx"
    norm = model.norm
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.constant_(norm.bias, 0.75)
    with torch.no_grad():
        norm.running_mean.copy_((norm.bias - 1e-3) / norm.weight * (norm.running_var + norm.eps).sqrt())
    torch.onnx.export(model.eval(), (x,), path, dynamo=False, opset_version=17, verbose=False)
    proto = onnx.load(path)
    (stored,) = [t for t in proto.graph.initializer if t.name == proto.graph.node[0].input[2]]
    moved = numpy_helper.to_array(stored).copy()
    moved[3] += np.float32(units * 2.0**-24)  # as many units of the terms
    stored.CopyFrom(numpy_helper.from_array(moved, stored.name))
    onnx.save(proto, path)
    verdict = nd.verify(model, path, args=x, level="quick")
    assert verdict.status == status, verdict.summary()
