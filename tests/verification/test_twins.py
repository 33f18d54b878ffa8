"""What a module computes twice, and another tool once: the file is confirmed for every input, unless it is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.graph import load_graph
from normdeploy.graph.derivation import Derivation
from normdeploy.verification import verify
from normdeploy.verification.derivation.checker import check_derivation

HEAD = '<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 4] x) => (float[N, 4] y)'
TWICE = """
    one = Constant <value_float = 1.5> ()
    a = {operator} (x)
    other = Constant <value_float = {number}> ()
    b = {operator} (x)
    c = Add(a, one)
    d = Add(b, other)
    e = Softsign(c)
    f = Sin(d)
    y = Div(e, f)"""
ONCE = """
    one = Constant <value_float = 1.5> ()
    a = {operator} (x)
    c = Add(a, one)
    e = Softsign(c)
    f = Sin(c)
    y = Div(e, f)"""


def written(path: Path, body: str, **given: object) -> Path:
    onnx.save(parser.parse_model(f"{HEAD} {{ {body.format(**given)} }}"), path)
    return path


def derived(folder: Path, operator: str, number: float) -> str:
    reference = written(folder / "a.onnx", TWICE, operator=operator, number=number)
    file = written(folder / "b.onnx", ONCE, operator=operator)
    return verify(reference, file, level="quick").check("derivation").status


@pytest.mark.parametrize("operator", ["Tanh", "LeakyRelu <alpha = 0.1>", "Identity"])
def test_one_in_the_place_of_two_that_are_the_same_is_confirmed(operator: str, tmp_path: Path):
    assert derived(tmp_path, operator, 1.5) == "pass"


def test_two_that_differ_by_a_constant_are_not(tmp_path: Path):
    assert derived(tmp_path, "Tanh", 1.625) != "pass"


def test_two_that_draw_are_not(tmp_path: Path):
    drawing = written(tmp_path / "a.onnx", TWICE, operator="RandomNormalLike", number=1.5)
    once = written(tmp_path / "b.onnx", ONCE, operator="RandomNormalLike")
    report = check_derivation(load_graph(drawing), load_graph(once), Derivation(), [{"x": (3, 4)}])
    assert report.open


@pytest.mark.parametrize("apart", [0.0, 0.25])
def test_layers_of_the_same_weights_are_one(apart: float, tmp_path: Path):
    """As two heads have them before training, whose norms see the same: LeViT's."""
    weights = np.random.default_rng(0).normal(size=(2, 4, 30)).astype(np.float32)
    weights[1] = weights[0]
    weights[1, 3, 29] += apart
    for name, body in (
        ("a", "a = MatMul(x, w) b = MatMul(x, v) c = Tanh(a) d = Sin(b) e = Mul(c, d) y = MatMul(e, u)"),
        ("b", "a = MatMul(x, w) c = Tanh(a) d = Sin(a) e = Mul(c, d) y = MatMul(e, u)"),
    ):
        proto = parser.parse_model(f"{HEAD} {{ {body} }}")
        stored = {"w": weights[0], "v": weights[1], "u": weights[0].T.copy()}
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, key) for key, array in stored.items())
        onnx.save(proto, tmp_path / f"{name}.onnx")
    verdict = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", level="quick")
    assert (verdict.status, verdict.check("derivation").status == "pass") == (
        ("fail", False) if apart else ("pass", True)
    )


class ChannelNorm(nn.Module):
    """What is left of the mean is written twice, as people do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(width, 1, 1) + 0.5), nn.Parameter(torch.randn(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.scale + self.shift


def test_torchs_own_export_of_a_hand_written_norm_is_confirmed(tmp_path: Path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), ChannelNorm(6), nn.Conv2d(6, 4, 1)).eval(), torch.randn(2, 3, 8, 8)
    path = tmp_path / "torchs.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, dynamic_shapes=({0: torch.export.Dim("n")},))
    verdict = nd.verify(model, path, args=(x,), level="quick")
    assert (verdict.status, verdict.check("derivation").status) == ("pass", "pass")


@pytest.mark.parametrize("square", ["Mul(c, c)", "Pow(c, two)"])
@pytest.mark.parametrize(("axes", "right"), [("-1", True), ("1", True), ("0", False)])
def test_an_axis_is_one_however_it_is_counted(axes: str, right: bool, square: str, tmp_path: Path):
    """torch counts the axis of a mean from the end, and that of a variance not."""
    last = "Constant <value_ints = [1]> ()"
    root = f"""two = Constant <value_float = 2.0> () one = {last} m = ReduceMean(x, one) c = Sub(x, m) q = {square}
        v = ReduceMean(q, one) r = Sqrt(v)"""
    twice = f"""{root}
        other = Constant <value_ints = [{axes}]> () n = ReduceMean(x, other) d = Sub(x, n) y = Div(d, r)"""
    bodies = ("a.onnx", twice), ("b.onnx", f"{root} y = Div(c, r)")
    pair = [load_graph(written(tmp_path / name, body)) for name, body in bodies]
    assert (not check_derivation(*pair, Derivation(), [{"x": (3, 4)}, {"x": (5, 4)}]).open) is right
