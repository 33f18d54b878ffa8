"""Along which axes a Scan takes its operands apart and puts its results together: sizes behind it are followed."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.graph import load_graph
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged

SCAN = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, k, 4] x, float[k, n] s) => (float[n, 4] last, float[n, 4, k] y)
    <float zero = {0.0}> {
    first = ReduceMean <axes = [1], keepdims = 0> (x)
    start = Mul (first, zero)
    last, all = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_output_axes = [OUT], body =
        step (float[n, 4] sum, float[n, 4] row, float[n] by) => (float[n, 4] next, float[n, 4] shown) {
            axis = Constant <value_ints = [1]> ()
            column = Unsqueeze (by, axis)
            part = Mul (row, column)
            next = Add (sum, part)
            shown = Identity (next)
        }> (start, x, s)
    turned = TURNED
    y = Sigmoid (turned)
}"""
WAYS = {0: "Transpose <perm = [1, 2, 0]> (all)", 1: "Transpose <perm = [0, 2, 1]> (all)", 2: "Identity (all)"}
WAYS |= {axis - 3: way for axis, way in WAYS.items()}


def write(folder: Path, axis: int, name: str = "net.onnx") -> Path:
    text = SCAN.replace("OUT", str(axis)).replace("TURNED", WAYS[axis])
    onnx.save(onnx.parser.parse_model(text), folder / name)
    return folder / name


@pytest.mark.parametrize("axis", WAYS)
def test_sizes_behind_it_are_what_onnxruntime_returns(axis: int, tmp_path: Path) -> None:
    path = write(tmp_path, axis)
    sizes = {"x": (2, 3, 4), "s": (3, 2)}
    side = Side(load_graph(path), [sizes])
    feeds = {name: np.ones(shape, np.float32) for name, shape in sizes.items()}
    for value, array in zip(side.graph.outputs, run_onnxruntime(path, feeds), strict=True):
        assert side.shapes(value) == (array.shape,)


@pytest.mark.parametrize("axis", WAYS)
def test_what_stands_behind_it_is_confirmed_and_another_axis_is_not(axis: int, tmp_path: Path) -> None:
    source = load_graph(write(tmp_path, axis))
    sizes = [{"x": (n, k, 4), "s": (k, n)} for n, k in ((4, 4), (2, 3))]
    assert check_derivation(source, load_graph(write(tmp_path, axis)), unchanged(source), sizes).confirmed
    for attribute in ("scan_input_axes", "scan_output_axes"):
        model = onnx.load(tmp_path / "net.onnx")
        scan = next(node for node in model.graph.node if node.op_type == "Scan")
        (axes,) = [a for a in scan.attribute if a.name == attribute]
        axes.ints[0] = 0 if axes.ints[0] else 1
        onnx.save(model, tmp_path / "changed.onnx")
        changed = load_graph(tmp_path / "changed.onnx")
        assert not check_derivation(source, changed, unchanged(source), sizes[:1]).confirmed


class Rays(nn.Module):
    """What a ray meets, sampled once more where most of it is met: NeRF's two passes."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
        self.fine = copy.deepcopy(self.coarse)
        self.depths = nn.Buffer(torch.linspace(2, 6, 6))

    def weights(self, density: Tensor, depth: Tensor) -> Tensor:
        apart = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 1e3)], -1)
        opaque = 1 - torch.exp(-torch.relu(density) * apart)
        passed = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], -1), -1)
        return opaque * passed[:, :-1]

    def forward(self, rays: Tensor) -> Tensor:
        start, way = rays[:, None, :3], rays[:, None, 3:]
        depth = self.depths.expand(rays.shape[0], -1)
        met = self.weights(self.coarse(start + way * depth[..., None])[..., 3], depth)[:, 1:-1] + 1e-5
        share = torch.cumsum(met / met.sum(-1, keepdim=True), -1)
        share = torch.cat([torch.zeros_like(share[:, :1]), share], -1)
        asked = torch.linspace(0, 1, 5).expand(rays.shape[0], 5).contiguous()
        place = torch.searchsorted(share, asked, right=True).clamp(1, share.shape[-1] - 1)
        middle = 0.5 * (depth[:, 1:] + depth[:, :-1])
        low, high = (torch.gather(middle, 1, place - n) for n in (1, 0))
        more = low + (asked - torch.gather(share, 1, place - 1)) * (high - low)
        depth = torch.sort(torch.cat([depth, more], -1), -1)[0]
        seen = self.fine(start + way * depth[..., None])
        return (self.weights(seen[..., 3], depth)[..., None] * torch.sigmoid(seen[..., :3])).sum(1)


def test_hierarchical_sampling_is_confirmed_for_every_input(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, rays = Rays().eval(), torch.randn(3, 6)
    result = nd.export(model, (rays,), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    detail = {check.name: check.detail for check in result.verdict.checks}
    assert detail["derivation"].startswith("for every input")
    proto = onnx.load(tmp_path / "net.onnx")
    scans = [node for node in proto.graph.node if node.op_type == "Scan"]
    assert scans
    (body,) = [attribute.g for attribute in scans[0].attribute if attribute.name == "body"]
    inner = next(node for node in body.node if node.op_type == "Mul")
    inner.op_type = "Add"
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "wrong.onnx")
    source, sizes = load_graph(tmp_path / "net.onnx"), [{"rays": (n, 6)} for n in (2, 3)]
    right, wrong = (load_graph(tmp_path / f"{name}.onnx") for name in ("net", "wrong"))
    assert check_derivation(source, right, unchanged(source), sizes).confirmed
    assert not check_derivation(source, wrong, unchanged(source), sizes).confirmed
