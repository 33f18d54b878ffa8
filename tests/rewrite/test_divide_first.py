"""A gain computed at run time that is multiplied in before the deviation divides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd


@pytest.mark.parametrize("gain_first", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_an_adaptive_norm_is_one_operator_and_a_product(graph, fold, gain_first, added):
    rng = np.random.default_rng(0)
    g = graph(opset=20)
    x, z = g.input("x", ["N", 3, 4, 4]), g.input("z", ["N", 3, 1, 1])
    axes = np.array([2, 3])
    mean = g.op("ReduceMean", x, axes)
    off = g.op("Sub", x, mean)
    variance = g.op("ReduceMean", g.op("Mul", off, off), axes)
    deviation = g.op("Sqrt", g.op("Add", variance, np.array(1e-5)))
    gain = g.op("Add", z, np.array(1.0)) if added else z
    product = g.op("Mul", *((gain, off) if gain_first else (off, gain)))
    g.output(g.op("Div", product, deviation))
    folding = fold(g).agree(g.feeds(rng, N=2))
    assert folding.ops == {"LayerNormalization": 1, "Mul": 1, **({"Add": 1} if added else {})}


def test_a_sum_of_the_product_itself_is_left(graph, fold):
    """Weights that are masked and then made to sum to 1: both factors are in the sum."""
    rng = np.random.default_rng(0)
    g = graph(opset=20)
    x, mask = g.input("x", ["N", 4]), g.input("mask", ["N", 4])
    product = g.op("Mul", mask, g.op("Exp", x))
    total = g.op("ReduceSum", g.op("Mul", product, product), np.array([1]))
    g.output(g.op("Div", g.op("Mul", mask, g.op("Exp", x)), total))
    assert fold(g).agree(g.feeds(rng, N=2)).ops["Div"] == 1


class Styled(nn.Module):
    """AdaIN as it is written most: a style's gain and bias, Python's order of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.conv = nn.Linear(4, 12), nn.Conv2d(6, 3, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        gain, bias = self.style(z)[..., None, None].chunk(2, 1)
        mean, deviation = x.mean((2, 3), keepdim=True), (x.var((2, 3), keepdim=True) + 1e-5).sqrt()
        return self.conv(gain * (x - mean) / deviation + bias)


def test_it_is_fused_and_proven(tmp_path):
    result = nd.export(Styled().eval(), (torch.randn(2, 6, 5, 5), torch.randn(2, 4)), tmp_path / "net.onnx")
    assert result.verdict.status == "pass"
    assert result.verdict.check("derivation").status == "pass"
    assert ("InstanceNormalization", "fused") in [(row.kind, row.action) for row in result.ledger.rows]
