"""What only looks like a normalization stays as written: false acceptance would ship a wrong network."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import Evaluator
from normdeploy.rewrite.recognise import RecogniseNorms
from normdeploy.rewrite.recognise.solve import ignores_scale
from normdeploy.rewrite.rewrite_context import RewriteContext

N = 16
G = np.linspace(-1.5, 2.0, N).astype(np.float32)
W = np.linspace(0.9, 1.1, N).astype(np.float32) / N
NORMS = {"LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"}
HALF = (np.array([0]), np.array([N // 2]), np.array([2]))


def d(x):
    return x - x.mean()


def v(x):
    return (d(x) * d(x)).mean()


def where(x, condition, other):
    return x.sketch.op("Where", condition, x, other)


LAST = np.arange(N) < N - 1
SMALL = np.where(LAST, 1.0, 1e-13).astype(np.float32)


NEAR_MISSES = {
    "epsilon on the mean": lambda x: (x - (x.mean() + 1e-5)) / (v(x) + 1e-5).sqrt(),
    "epsilon added to the numerator and scaled with the rows": lambda x: (d(x) + 1e-5 * x) / (v(x) + 1e-5).sqrt(),
    "epsilon times the variance": lambda x: d(x) / (v(x) * 1e-5 + v(x).sqrt() + 1e-5).sqrt(),
    "epsilon added to the reciprocal": lambda x: d(x) * ((v(x) + 1e-5).rsqrt() + 1e-5),
    "epsilon inside and outside": lambda x: d(x) / ((v(x) + 1e-5).sqrt() + 1e-7),
    "a tiny epsilon outside and one inside": lambda x: d(x) / ((v(x) + 1e-5).sqrt() + 1e-10),
    "epsilon squared at the rows' scale": lambda x: d(x) / (v(x) + x.mean() * 1e-5 + 1e-5).sqrt(),
    "variance over another axis": lambda x: d(x) / ((d(x) * d(x)).mean((1,)) + 1e-5).sqrt(),
    "mean over another axis": lambda x: (x - x.mean((1,))) / (v(x) + 1e-5).sqrt(),
    "mean over two axes, variance over one": lambda x: (x - x.mean((1, 2))) / (v(x) + 1e-5).sqrt(),
    "weighted mean": lambda x: (x - (x * W).sum()) / (v(x) + 1e-5).sqrt(),
    "weighted variance": lambda x: d(x) / ((d(x) * d(x) * W).sum() + 1e-5).sqrt(),
    "weighted mean of squares": lambda x: x / ((x * x * W).sum() + 1e-5).sqrt(),
    "weighted mean by a product": lambda x: (x - x.op("MatMul", W.reshape(N, 1))) / (v(x) + 1e-5).sqrt(),
    "missing square": lambda x: d(x) / (d(x).mean() + 1.0).sqrt(),
    "absolute deviation": lambda x: d(x) / (d(x).op("Abs").mean() + 1e-5),
    "cube": lambda x: d(x) / (((d(x) ** 2).mean() ** 1.5) + 1e-5).sqrt(),
    "no root": lambda x: d(x) / (v(x) + 1e-5),
    "root of the root": lambda x: d(x) / (v(x) + 1e-5).sqrt().sqrt(),
    "exponent -0.499": lambda x: d(x) * (v(x) + 1e-5) ** -0.499,
    "mean not subtracted": lambda x: x / (v(x) + 1e-5).sqrt(),
    "mean subtracted, second moment of x": lambda x: d(x) / ((x * x).mean() + 1e-5).sqrt(),
    "half the mean subtracted": lambda x: (x - 0.5 * x.mean()) / (v(x) + 1e-5).sqrt(),
    "mean of half the row": lambda x: (x - x.op("Slice", *HALF).mean()) / (v(x) + 1e-5).sqrt(),
    "variance of half the row": lambda x: d(x) / (v(x.op("Slice", *HALF)) + 1e-5).sqrt(),
    "clamped variance": lambda x: d(x) / (v(x).op("Clip", 1e-4) + 1e-5).sqrt(),
    "clamped far below": lambda x: d(x) / (v(x).op("Clip", 1e-30)).sqrt(),
    "clamped deviation": lambda x: d(x) / v(x).sqrt().op("Max", 1e-3),
    "clamped length": lambda x: x / x.mean(by="ReduceL2").op("Clip", 1e-12),
    "clamped from above": lambda x: d(x) / (v(x).op("Clip", 0.0, 1e6) + 1e-5).sqrt(),
    "clamped output": lambda x: (d(x) / (v(x) + 1e-5).sqrt()).op("Clip", -9.0, 9.0).op("Add", x),
    "rectified before": lambda x: x.op("Relu") / ((x * x).mean() + 1e-5).sqrt(),
    "branch on the data": lambda x: where(d(x) / (v(x) + 1e-5).sqrt(), v(x).op("Less", 1e-8), x),
    "constant rows pass through": lambda x: where(x, v(x).op("Less", 1e-12), d(x) / v(x).sqrt()),
    "gain from the data": lambda x: x / ((x * x).mean() + 1e-5).sqrt() * x.op("Sigmoid"),
    "scale from the variance": lambda x: d(x) / (v(x) + 1e-5).sqrt() * v(x),
    "tanh": lambda x: (x * 0.5).op("Tanh") * G,
    "softmax-like": lambda x: x.op("Exp") / x.op("Exp").sum(),
    "sum of squares by neighbours": lambda x: d(x) / ((d(x) * x.op("Sum", 0.0)).mean() + 1e-3 * x + 1e-5).sqrt(),
    "sum to one": lambda x: x / x.sum(),
    "added input": lambda x: x + d(x) * 1e-8 / (v(x) + 1e-5).sqrt(),
}

# the middle is a normalization and what stands around it is not part of it
PARTIAL = {
    "constant rows pass through",
    "clamped output",
    "scale from the variance",
    "gain from the data",
    "added input",
    "branch on the data",
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_computes_what_it_computed(name, sketch):
    drawing = sketch()
    model = drawing.model(NEAR_MISSES[name](drawing.input(("n", 5, N))))
    before = model.clone()
    context = RewriteContext()
    RecogniseNorms(context)(model)
    kinds = [node.op_type for node in model.graph]
    if name in PARTIAL:
        assert [row.action for row in context.ledger] == ["fused"]
        assert model.graph.outputs[0].producer().op_type not in NORMS
    else:
        assert not NORMS & set(kinds)
        assert kinds == [node.op_type for node in before.graph]
        assert all(row.action == "kept" for row in context.ledger)
    rng = np.random.default_rng(3)
    for scale in (1e-6, 1e-3, 1.0, 1e3):
        x = torch.from_numpy(scale * (rng.standard_normal((3, 5, N)) + 0.3))
        old, new = (Evaluator(item).run({"x": x})["y0"] for item in (before, model))
        torch.testing.assert_close(new, old, rtol=1e-7, atol=1e-9 * float(old.nan_to_num().abs().max()), equal_nan=True)


def test_no_scale_is_so_large_that_others_and_shifts_are_nothing_beside_it(sketch):
    drawing = sketch()
    scale, shift = np.float32([1, -1e30, 0.5, 3e-20]), np.float32([0, 1, -1, 2])
    x = drawing.input(("n", 4))
    model = drawing.model(d(x) / (v(x) + 1e-5).sqrt() * scale + shift)
    RecogniseNorms(RewriteContext())(model)
    assert [node.op_type for node in model.graph] == ["LayerNormalization"]
    given = np.random.default_rng(0).standard_normal((3, 4))
    centred = given - given.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float64(np.float32(1e-5))) * scale + shift
    found = Evaluator(model).run({"x": torch.from_numpy(given)})["y0"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_place_of_small_scale_is_looked_at_as_closely_as_others(sketch):
    drawing = sketch()
    normal = d(x := drawing.input((N,))) / (v(x) + 1e-5).sqrt()
    model = drawing.model(where(normal * SMALL, LAST, normal * normal * normal * 1e-13))
    RecogniseNorms(RewriteContext())(model)
    assert model.graph.outputs[0].producer().op_type == "Where"


def test_float16_in_the_middle_keeps_the_outer_cast(sketch):
    """A region whose result leaves in another type is a norm of the cast value, not of x."""
    drawing = sketch(dtype=ir.DataType.FLOAT16)
    x = drawing.input(("n", N))
    h = x.cast(ir.DataType.FLOAT)
    model = drawing.model(d(h) / (v(h) + 1e-5).sqrt() * G)
    RecogniseNorms(RewriteContext())(model)
    assert [node.op_type for node in model.graph] == ["Cast", "LayerNormalization"]


def test_overridable_scale_is_not_a_constant(sketch):
    """An initializer that is also a graph input can be given by the caller, so it must stay an operand."""
    drawing = sketch()
    x = drawing.input(("n", N))
    z = d(x) / (v(x) + 1e-5).sqrt()
    g = drawing.constant(G)
    y = z * g
    drawing.graph.inputs.append(g)
    model = drawing.model(y)
    RecogniseNorms(RewriteContext())(model)
    assert [node.op_type for node in model.graph] == ["LayerNormalization", "Mul"]
    assert model.graph[1].inputs[1] is g


def test_wrong_rewrite_is_caught_where_it_happens(sketch, monkeypatch):
    """The check in front of each replacement is alive: an emission with another epsilon raises."""
    from dataclasses import replace

    from normdeploy.errors import RewriteError
    from normdeploy.rewrite.recognise import norms_pass

    right = norms_pass.emit

    def wrong(norm, *rest, **options):
        return right(replace(norm, epsilon=norm.epsilon * 10), *rest, **options)

    monkeypatch.setattr(norms_pass, "emit", wrong)
    drawing = sketch()
    x = drawing.input(("n", N))
    model = drawing.model(d(x) / (v(x) + 1e-5).sqrt() * G)
    with pytest.raises(RewriteError, match="recognise norms"):
        RecogniseNorms(RewriteContext())(model)


def test_what_is_infinite_on_both_sides_is_no_norm():
    """sinh(1e8) and sinh(-1e8): their sum is no number, which is no warning to a user."""
    upper, lower = np.full(N, np.inf), np.full(N, -np.inf)
    assert not ignores_scale((upper, lower), (upper, lower))
    p = np.linspace(-1.0, 1.0, N)
    assert ignores_scale((p, -p), (p, -p))
