"""x + a (f - x) is a sum of two maps, each of which what makes x or f takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.graph import load_graph
from normdeploy.verification.record.answers import Question, Status

WIDTH = 6
SHAPE = (WIDTH, 1, 1)


def product(g, value, weight, *, first):
    return g.op("Mul", *((weight, value) if first else (value, weight)))


def layer(g, rng, x):
    return g.op("Conv", x, rng.normal(size=(WIDTH, 3, 1, 1)), rng.normal(size=WIDTH))


def two(g, rng):
    x = g.input("x", ["N", 3, 4, 4])
    return layer(g, rng, x), layer(g, rng, x)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("form", ["from the first", "from the second", "the difference behind"])
def test_a_blend_of_two_layers_is_absorbed_by_both(graph, fold, form, first):
    rng = np.random.default_rng(0)
    g = graph()
    x, f = two(g, rng)
    a = rng.uniform(0, 1, SHAPE)
    difference = g.op("Sub", f, x)
    if form == "from the first":
        y = g.op("Add", *((x, product(g, difference, a, first=first))[:: 1 if first else -1]))
    elif form == "from the second":
        y = g.op("Sub", f, product(g, difference, 1 - a, first=first))
    else:
        y = g.op("Sub", x, product(g, g.op("Sub", x, f), a, first=first))
    g.output(g.op("Relu", y))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert not [row for row in result.ledger if row.action == "kept"]
    assert result.ops == {"Conv": 1, "Relu": 1}  # both layers read one value: they are one


@pytest.mark.parametrize(
    "case", ["guidance", "difference read", "multiple read", "given out", "computed", "other value"]
)
def test_what_is_no_blend_stays(graph, fold, case):
    rng = np.random.default_rng(2)
    g = graph()
    x, f, other = g.input("x", ["N", 3]), g.input("f", ["N", 3]), g.input("other", ["N", 3])
    difference = g.op("Sub", f, x)
    weight = {"guidance": np.array(7.5), "computed": g.op("Sigmoid", other)}.get(case, np.array([0.25, 0.5, 0.75]))
    multiple = g.op("Mul", difference, weight)
    g.output(g.op("Add", other if case == "other value" else x, multiple))
    if case in ("difference read", "multiple read"):
        g.output(g.op("Relu", difference if case == "difference read" else multiple))
    if case == "given out":
        g.output(difference)
    ops = fold(g).agree(g.feeds(rng, N=2)).ops
    assert ops["Sub"] == 1
    assert ops["Mul"] == 1


def test_a_stream_of_float16_keeps_its_size(graph, fold):
    """Its scale would be the product of the shares, for which float16 has little room."""
    rng = np.random.default_rng(3)
    g = graph(dtype=np.float16)
    x, f = two(g, rng)
    g.output(g.op("Relu", g.op("Add", x, g.op("Mul", g.op("Sub", f, x), rng.uniform(0, 1, SHAPE)))))
    assert fold(g).ops["Sub"] == 1


class Blended(nn.Module):
    """A stream that each layer moves by a share of its own, as ``torch.lerp`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.layers = nn.Conv2d(3, WIDTH, 1), nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(3))
        shares = torch.cat([torch.linspace(0.05, 0.45, WIDTH), torch.linspace(0.55, 0.95, 2 * WIDTH)])
        self.share = nn.Parameter(shares.reshape(3, WIDTH, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.start(x)
        for layer, share in zip(self.layers, self.share, strict=True):
            y = torch.lerp(y, layer(torch.relu(y)), share)
        return torch.relu(y)


def test_lerp_of_torch_is_exported_without_a_pass_of_its_own(tmp_path):
    torch.manual_seed(0)
    module, x = Blended().eval(), torch.randn(2, 3, 5, 5)
    result = nd.export(module, x, tmp_path / "blended.onnx")
    assert not [row for row in result.ledger if row.action == "kept"]
    assert {node.op_type for node in load_graph(tmp_path / "blended.onnx").graph} == {"Conv", "Relu", "Add"}
    (check,) = [check for check in result.verdict.checks if check.name is Question.DERIVATION]
    assert check.status is Status.PASS  # for every input
