"""Scales in front of powers, and of what is told of the side of 0 on which values are: they pass, shifts do not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.exporting.trace import trace
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

PASSES = {
    "squared Relu": (lambda x: x.relu() ** 2, 1),
    "cubed": (lambda x: x.pow(3), 1),
    "squared": (lambda x: x**2, 1),
    "inverse square": (lambda x: x.clone() ** -2.0, 1),
    "three halves": (lambda x: x.abs() ** 1.5, 1),
    "root of a size": (lambda x: x.abs().sqrt(), 1),
    "signed root": (lambda x: torch.sign(x) * x.abs().sqrt(), 1),
    "inverse": (lambda x: torch.where(x > 0, 1 / x, x), 0),
    "mask": (lambda x: x * (x > 0), 1),
    "mask of what is below": (lambda x: x * (x <= 0).to(x.dtype), 1),
    "filled": (lambda x: x.masked_fill(x < 0, 0.0), 1),
    "power average": (lambda x: functional.lp_pool2d(x.abs(), 2, 2), 1),
}
"""Functions behind a scale, and whether it passes."""


class Scaled(nn.Module):
    """A scale for each channel of what nothing in front can take, and a convolution that can."""

    def __init__(self, function, shift: float) -> None:
        super().__init__()
        self.function, self.end = function, nn.Conv2d(4, 3, 1)
        self.scale = nn.Parameter(torch.tensor([0.5, 1.5, 3.0, 0.25]).reshape(4, 1, 1))
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x) * self.scale
        return self.end(self.function(x + self.shift if self.shift else x))


def folded(model: nn.Module):
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    traced = trace(model.eval(), (x,))
    return x, traced.model, rewrite(traced.model)


def require_equal(model: nn.Module, result, x: Tensor) -> None:
    name = result.model.graph.inputs[0].name
    have = onnx.reference.ReferenceEvaluator(ir.to_proto(result.model)).run(None, {name: x.numpy()})[0]
    with torch.no_grad():
        want = model.double()(x.double()).numpy()
    assert np.abs(have - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    ("name", "below"),
    [*((name, False) for name in PASSES), *((name, True) for name in ("cubed", "squared", "inverse square"))],
)
def test_a_scale_passes(name, below):
    """One below 0 passes whole powers alone."""
    torch.manual_seed(1)
    function, passes = PASSES[name]
    model = Scaled(function, 0.0)
    with torch.no_grad():
        model.scale[1] *= -1 if below else 1
    x, source, result = folded(model)
    assert len(list(result.ledger.kept)) == 1 - passes, [row.reason for row in result.ledger.kept]
    require_equal(model, result, x)
    name_of = result.model.graph.inputs[0].name
    report = check_derivation(source, result.model, result.derivation, [{name_of: (n, 4, 6, 6)} for n in (2, 3)])
    assert report.confirmed, [(row.name, row.reason) for row in report.open]


@pytest.mark.parametrize("name", ["squared Relu", "root of a size", "mask", "filled"])
def test_what_stays(name):
    """A shift in front of them stays, and so does a scale below 0."""
    torch.manual_seed(1)
    assert list(folded(Scaled(PASSES[name][0], 0.25))[2].ledger.kept)
    model = Scaled(PASSES[name][0], 0.0)
    with torch.no_grad():
        model.scale[1] = -1.5
    x, _, result = folded(model)
    assert list(result.ledger.kept)
    require_equal(model, result, x)
