"""Epsilon added to the standard deviation: the short form is exact for every spread, and as good in float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.recognise.norms_pass import RecogniseNorms
from normdeploy.rewrite.rewrite_context import RewriteContext

N = 12
SHORT = ["LayerNormalization", "Add", "Reciprocal", "Mul"]
STEPS = ["ReduceMean", "Sub", "Mul", "ReduceMean", "Sqrt", "Add", "Div"]
G = np.array([1.0, -1.0, 0.5, 2.0, 1e-3, 1e-8, 0.0, 30.0, 1.5, -0.1, 1.0, 1.0], np.float32)


def _written(sketch, epsilon: float, scale: np.ndarray = G) -> ir.Model:
    drawing = sketch()
    x = drawing.input(("n", 3, N))
    d = x - x.mean()
    return drawing.model(d / ((d * d).mean().sqrt() + epsilon) * scale)


def _recognised(model: ir.Model) -> tuple[ir.Model, list[str]]:
    context = RewriteContext()
    RecogniseNorms(context)(model)
    (row,) = context.ledger
    assert row.action == "fused"
    assert row.detail["outside"]
    return model, [node.op_type for node in model.graph]


def _rows(epsilon: float) -> torch.Tensor:
    """Return rows whose spread is zero, far below epsilon, about it, and far above."""
    spreads = np.array([0.0, 1e-9, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6, 1.0 / epsilon]) * epsilon
    draw = np.random.default_rng(0).normal(size=(len(spreads), 3, N))
    return torch.from_numpy(draw * spreads[:, None, None])


def _truth(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return the definition in float64, epsilon and scale as float32 holds them."""
    d = x - x.mean(-1, keepdim=True)
    s = d.square().mean(-1, keepdim=True).sqrt()
    return d / (s + float(np.float32(epsilon))) * torch.from_numpy(G.astype(np.float64))


@pytest.mark.parametrize("epsilon", [1e-8, 1e-6, 1e-3, 0.5, 50.0])
def test_it_is_exact_for_every_spread(sketch, epsilon):
    model, kinds = _recognised(_written(sketch, epsilon))
    assert kinds == SHORT
    x = _rows(epsilon)
    (got,) = Evaluator(model).run({"x": x}).values()
    truth = _truth(x, epsilon)
    assert torch.isfinite(got).all()
    assert not got[0].any()
    for row, expected in zip(got[1:], truth[1:], strict=True):
        torch.testing.assert_close(row, expected, rtol=1e-10, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 1e-3, 0.5, 50.0])
def test_in_float32_it_is_as_good_as_it_was_written(sketch, epsilon):
    written = _written(sketch, epsilon)
    before = onnxruntime.InferenceSession(ir.to_proto(written).SerializeToString())
    after = onnxruntime.InferenceSession(ir.to_proto(_recognised(written)[0]).SerializeToString())
    x = _rows(epsilon).float()
    truth = _truth(x.double(), epsilon).numpy()
    errors = []
    for session in (before, after):
        (found,) = session.run(None, {"x": x.numpy()})
        assert np.isfinite(found).all()
        errors.append(np.abs(found - truth).max((1, 2))[1:] / np.abs(truth).max((1, 2))[1:])
    # the operator's own epsilon, 1e-36, is a deviation of 1e-18: the share of epsilon that a constant row feels
    assert (errors[1] <= 4 * errors[0] + 5e-7 + 1.1e-18 / epsilon).all()
    assert errors[1].max() < 2e-6


@pytest.mark.parametrize(
    ("epsilon", "scale"), [(1e-14, G), (1e-6, np.full(N, 1e-37, np.float32)), (1e-12, np.full(N, 1e20, np.float32))]
)
def test_constants_that_float32_does_not_hold_are_not_written(sketch, epsilon, scale):
    """Below 1e-13 the operator's own epsilon shows; scale / epsilon must neither overflow nor vanish."""
    _, kinds = _recognised(_written(sketch, epsilon, scale))
    assert kinds[: len(STEPS)] == STEPS


def test_the_longer_form_of_older_files_takes_the_short_one(sketch):
    drawing = sketch()
    x = drawing.input(("n", 3, N))
    normal = drawing.op("LayerNormalization", x, G, axis=-1, epsilon=1e-36)
    d = x - x.mean()
    inverse = (d * d).mean().sqrt() ** -1.0
    model = drawing.model(normal * (inverse * 1e-6 + 1.0).op("Reciprocal"))
    assert _recognised(model)[1] == SHORT


class Styled(torch.nn.Module):
    """AdaIN as published: the spread of one image, unbiased, on another that was divided by its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 6, 3)

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        mean, deviation = x.mean((2, 3), keepdim=True), x.std((2, 3), keepdim=True)
        normal = (x - mean) / (deviation + 1e-5)
        return self.convolution(normal * style.std((2, 3), keepdim=True) + style.mean((2, 3), keepdim=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_of_what_it_is_multiplied_by_goes_into_it_where_it_has_weights(dtype: torch.dtype):
    """In float64 it is written step by step, without: that is the reason then, and not that shapes are not known."""
    torch.manual_seed(0)
    model = Styled().eval().to(dtype)
    example = (torch.randn(2, 4, 7, 7, dtype=dtype), torch.randn(2, 4, 5, 5, dtype=dtype))
    traced = trace(model, example)
    result = rewrite(traced.model)
    (row,) = [row for row in result.ledger if row.kind == "affine map"]
    if dtype == torch.float32:
        assert row.action == "folded", row.reason
    else:
        assert row.action == "kept"
        assert "'style' is given" in row.reason
        assert "unknown" not in row.reason
    x, style = (torch.randn(3, 4, 7, 7).double(), torch.randn(3, 4, 5, 5).double() * 3)
    (found,) = Evaluator(result.model).run(dict(zip(traced.input_names, (x, style), strict=True))).values()
    with torch.no_grad():
        torch.testing.assert_close(found, model.double()(x, style), rtol=1e-6, atol=1e-6)
