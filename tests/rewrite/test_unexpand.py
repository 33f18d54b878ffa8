"""What is repeated to the other operand's shape is read as it is; what makes the other larger stays."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite


class Scaled(nn.Module):
    """A scale and a shift brought to x's shape, and a linear layer behind."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.g, self.b = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.randn(6))
        self.last = nn.Linear(6, 4)

    def spread(self, c: Tensor, x: Tensor) -> Tensor:
        if self.spelling == "expand_as":
            return c.expand_as(x)
        if self.spelling == "expand":
            return c.expand(x.shape)
        if self.spelling == "expand batch":
            return c.reshape(1, 1, 6).expand(x.shape[0], -1, -1)
        if self.spelling == "repeat batch":
            return c.reshape(1, 1, 6).repeat(x.shape[0], 1, 1)
        return c.repeat(x.shape[0], x.shape[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.spread(self.g, x) + self.spread(self.b, x))


@pytest.mark.parametrize("spelling", ["expand_as", "expand", "expand batch", "repeat batch", "repeat all"])
@pytest.mark.parametrize("dynamic", [{0: "n", 1: "t"}, {0: "n"}, {}])
def test_parameters_brought_to_xs_shape_fold(spelling: str, dynamic: dict[int, str]):
    model = Scaled(spelling).eval()
    traced = trace(model, (torch.randn(2, 5, 6),), dynamic_shapes=(dynamic,)).model
    result = rewrite(traced)
    assert [node.op_type for node in result.model.graph] == ["MatMul", "Add"]
    assert [row.action for row in result.ledger] == ["folded"]
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        expected = model.double()(x)
    (found,) = Evaluator(result.model).run({str(traced.graph.inputs[0].name): x}).values()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


def test_f_normalize_divides_by_the_norm_itself():
    traced = trace(Unit().eval(), (torch.randn(2, 5, 6),), dynamic_shapes=({0: "n", 1: "t"},)).model
    result = rewrite(traced)
    assert "Expand" not in [node.op_type for node in result.model.graph]
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    (found,) = Evaluator(result.model).run({str(traced.graph.inputs[0].name): x}).values()
    torch.testing.assert_close(found, F.normalize(x, dim=-1), rtol=1e-9, atol=1e-9)


def graph(body: str, inputs: str, c: str = "float[6] c = {1, 2, 3, 4, 5, 6}") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net ({inputs}) => (float[a, b, e] y) <{c}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] six = {{6}},
        float[1,1,6] d = {{6, 5, 4, 3, 2, 1}}>
        {{ {body} }}"""
    )


REPEATED = {
    "Shape of x": ("s = Shape(x)\n e = Expand(c, s)\n y = Mul(e, x)", "float[n,t,6] x"),
    "dimensions without names": ("s = Shape(x)\n e = Expand(c, s)\n y = Sub(x, e)", "float[?,?,6] x"),
    "elements of the shape": (
        "s = Shape(x)\n z = Constant <value = int64[1] {1}> ()\n t = Gather(s, z)\n k = Concat <axis = 0> (t, six)\n"
        "e = Expand(c, k)\n y = Add(x, e)",
        "float[n,t,6] x",
    ),
    "the shape of what was read before": (
        "r = Relu(x)\n s = Shape(r)\n e = Expand(c, s)\n p = Mul(r, e)\n f = Expand(c, s)\n y = Add(p, f)",
        "float[n,t,6] x",
    ),
    "the same without names": (
        "r = Relu(x)\n s = Shape(r)\n e = Expand(c, s)\n p = Mul(r, e)\n f = Expand(c, s)\n y = Sub(f, p)",
        "float[?,?,6] x",
    ),
    "repeated over the batch": (
        "s = Shape(x)\n z = Constant <value = int64[1] {0}> ()\n t = Slice(s, z, one)\n"
        "k = Concat <axis = 0> (t, one, one)\n e = Tile(d, k)\n y = Add(x, e)",
        "float[n,t,6] x",
    ),
    "another value of the same names": (
        "s = Shape(w)\n e = Expand(c, s)\n y = Div(x, e)",
        "float[n,t,6] x, float[n,t,6] w",
    ),
    "both sides": (
        "s = Shape(x)\n e = Expand(c, s)\n f = Expand(c, s)\n q = Add(e, f)\n y = Mul(x, q)",
        "float[n,t,6] x",
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_operands_are_dropped(name: str):
    body, inputs = REPEATED[name]
    model = graph(body, inputs)
    result = rewrite(model)
    kinds = [node.op_type for node in result.model.graph]
    assert not kinds.count("Expand") + kinds.count("Tile")
    feeds = {str(value.name): torch.randn(2, 5, 6, dtype=torch.float64) for value in model.graph.inputs}
    expected = Evaluator(model).run(feeds)["y"]
    torch.testing.assert_close(Evaluator(result.model).run(feeds)["y"], expected, rtol=1e-9, atol=1e-9)


ENLARGED = {
    "x itself has one row": ("s = Shape(w)\n e = Expand(c, s)\n y = Mul(x, e)", "float[n,1,6] x, float[n,t,6] w"),
    "another name": ("s = Shape(w)\n e = Expand(c, s)\n y = Mul(x, e)", "float[n,t,6] x, float[m,t,6] w"),
    "nothing known of either": ("s = Shape(w)\n e = Expand(c, s)\n y = Mul(x, e)", "float[?,t,6] x, float[?,t,6] w"),
    "another dimension of what was read before": (
        "r = Mul(x, w)\n s = Shape(w)\n e = Expand(c, s)\n y = Mul(x, e)",
        "float[?,t,6] x, float[?,t,6] w",
    ),
    "a higher rank": ("s = Shape(w)\n e = Expand(c, s)\n y = Mul(x, e)", "float[t,6] x, float[n,t,6] w"),
    "repeated elements": (
        "r = Concat <axis = 0> (one, one, two)\n e = Tile(q, r)\n y = Mul(x, e)",
        "float[n,t,6] x, float[1,1,3] q",
    ),
    "axes exchanged": (
        "s = Shape(x)\n z = Constant <value = int64[3] {1, 0, 2}> ()\n t = Gather(s, z)\n e = Expand(c, t)\n"
        "k = Transpose <perm = [1, 0, 2]> (e)\n y = Mul(x, k)",
        "float[n,t,6] x",
    ),
}


@pytest.mark.parametrize("name", ENLARGED)
def test_what_enlarges_or_is_not_known_stays(name: str):
    body, inputs = ENLARGED[name]
    model = graph(body, inputs)
    result = rewrite(model)
    assert {"Expand", "Tile"} & {node.op_type for node in result.model.graph}
    sizes = {"n": 3, "m": 3 if name == "another name" else 2, "t": 4, "?": 3}
    feeds = {}
    for value in model.graph.inputs:
        dims = [dim if isinstance(dim, int) else sizes[dim.value or "?"] for dim in value.shape]
        if name == "nothing known of either" and value.name == "x":
            dims[0] = 1
        feeds[str(value.name)] = torch.randn(dims, dtype=torch.float64)
    expected = Evaluator(model).run(feeds)["y"]
    torch.testing.assert_close(Evaluator(result.model).run(feeds)["y"], expected, rtol=1e-9, atol=1e-9)
