"""Every spelling of a normalization becomes the single operator, and computes what the formula says."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from node_kinds import kinds

from normdeploy.graph import WHERE, Evaluator
from normdeploy.rewrite.ledger import Ledger
from normdeploy.rewrite.recognise import RecogniseNorms
from normdeploy.rewrite.rewrite_context import RewriteContext

N = 16
G = np.linspace(-1.5, 2.0, N).astype(np.float32)
B = np.linspace(0.7, -0.4, N).astype(np.float32)
ROWS = ("n", 5, N)
IMAGE = ("n", N, 4, 6)
C4 = (1, N, 1, 1)
LN, RMS, IN = "LayerNormalization", "RMSNormalization", "InstanceNormalization"
F16, F32 = ir.DataType.FLOAT16, ir.DataType.FLOAT


def deviation(x, axes=(-1,)):
    return x - x.mean(axes)


def biased(x, axes=(-1,)):
    d = deviation(x, axes)
    return (d * d).mean(axes)


def moments(x, axes=(-1,)):
    m = x.mean(axes)
    return (x * x).mean(axes) - m * m


def unbiased(x):
    d = deviation(x)
    return (d * d).sum() / (N - 1.0)


def by_contraction(x):
    return x.op("MatMul", np.full((N, 1), 1 / N, dtype=np.float32))


def tensorflow_form(x, s):
    m = x.mean()
    factor = (biased(x) + 1e-5).rsqrt() * G
    return x * factor + (B - m * factor)


def through_rows(x):
    flat = x.reshape(-1, N)
    return ((flat - flat.mean()) / (biased(flat) + 1e-5).sqrt() * G + B).reshape(-1, 5, N)


def through_channels_first(x):
    turned = x.transpose(0, 2, 1)
    d = deviation(turned, (1,))
    y = d / ((d * d).mean((1,)) + 1e-5).sqrt() * G.reshape(N, 1) + B.reshape(N, 1)
    return y.transpose(0, 2, 1)


def through_einsum(x):
    ones = np.full(N, 1 / N, dtype=np.float32)
    m = x.op("Einsum", ones, equation="nlc,c->nl").op("Unsqueeze", np.array([-1]))
    d = x - m
    v = d.sketch.op("Einsum", d, d, equation="nlc,nlc->nl").op("Unsqueeze", np.array([-1])) / float(N)
    return d / (v + 1e-5).sqrt() * G + B


def layer_norm(x, *constants, **attributes):
    return x.op(LN, *constants, **{"epsilon": 1e-5, "axis": -1, **attributes})


def group_view(x, variance=biased):
    t = x.reshape(0, 4, -1)
    return ((t - t.mean()) / (variance(t) + 1e-5).sqrt()).reshape(0, N, 4, 6)


def group_5d(x):
    t = x.reshape(0, 4, 4, 4, 6)
    axes = (2, 3, 4)
    return (deviation(t, axes) / (biased(t, axes) + 1e-5).sqrt()).reshape(0, N, 4, 6) * G.reshape(C4) + B.reshape(C4)


def group_by_instance(x):
    ones, zeros = np.ones(4, dtype=np.float32), np.zeros(4, dtype=np.float32)
    t = x.reshape(0, 4, -1).op(IN, ones, zeros, epsilon=1e-5).reshape(0, N, 4, 6)
    return t * G.reshape(N, 1, 1) + B.reshape(N, 1, 1)


def llama(x):
    h = x.cast(F32)
    return (h * ((h**2).mean() + 1e-6).rsqrt()).cast(F16) * G


LAST = {"axes": (-1,), "epsilon": 1e-5, "scale": G, "shift": B}
PLAIN = {"axes": (-1,), "epsilon": 1e-5}
ROOT = {"axes": (-1,), "epsilon": 1e-5, "centred": False, "scale": G}
CHANNELS = {"axes": (1,), "epsilon": 1e-5, "scale": G.reshape(C4), "shift": B.reshape(C4)}
SPATIAL = {"axes": (2, 3), "epsilon": 1e-5, "scale": G.reshape(C4), "shift": B.reshape(C4)}
GROUPS = {"axes": (), "groups": 4, "epsilon": 1e-5, "scale": G.reshape(C4), "shift": B.reshape(C4)}
SHORT = [LN, "Add", "Reciprocal", "Mul", "Add"]
TURNED = ["Transpose", LN, "Transpose"]
GROUPED = ["Reshape", IN, "Reshape", "Mul", "Add"]

# name: (function, input shape, expected operators, what it is)
SPELLINGS = {
    "two pass, product": (lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() * G + B, ROWS, [LN], LAST),
    "two pass, Pow 2": (lambda x: deviation(x) / ((deviation(x) ** 2).mean() + 1e-5).sqrt() * G + B, ROWS, [LN], LAST),
    "reciprocal of root": (lambda x: deviation(x) * (biased(x) + 1e-5).rsqrt() * G + B, ROWS, [LN], LAST),
    "one over root": (lambda x: deviation(x) * (1.0 / (biased(x) + 1e-5).sqrt()) * G + B, ROWS, [LN], LAST),
    "Pow -0.5": (lambda x: deviation(x) * (biased(x) + 1e-5) ** -0.5 * G + B, ROWS, [LN], LAST),
    "Pow 0.5": (lambda x: deviation(x) / (biased(x) + 1e-5) ** 0.5 * G + B, ROWS, [LN], LAST),
    "root of reciprocal": (lambda x: deviation(x) * (1.0 / (biased(x) + 1e-5)).sqrt() * G + B, ROWS, [LN], LAST),
    "epsilon first": (lambda x: deviation(x) / (1e-5 + biased(x)).sqrt() * G + B, ROWS, [LN], LAST),
    "moments": (lambda x: (x - x.mean()) / (moments(x) + 1e-5).sqrt() * G + B, ROWS, [LN], LAST),
    "moments, Relu": (
        lambda x: (x - x.mean()) / (moments(x).op("Relu") + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        LAST,
    ),
    "moments, Max 0": (
        lambda x: (x - x.mean()) / (moments(x).op("Max", 0.0) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        LAST,
    ),
    "moments, Clip 0": (
        lambda x: (x - x.mean()) / (moments(x).op("Clip", 0.0) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        LAST,
    ),
    "L1: correction 1": (
        lambda x: deviation(x) / (unbiased(x) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        {**LAST, "correction": 1},
    ),
    "correction as a factor": (
        lambda x: deviation(x) / (biased(x) * (N / (N - 1)) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        {**LAST, "correction": 1},
    ),
    "correction 2": (
        lambda x: deviation(x) / ((deviation(x) ** 2).sum() / (N - 2.0) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        {**LAST, "correction": 2},
    ),
    "L3: no epsilon": (lambda x: deviation(x) / biased(x).sqrt() * G + B, ROWS, [LN], {**LAST, "epsilon": 0.0}),
    "no epsilon, correction 1": (
        lambda x: deviation(x) / unbiased(x).sqrt() * G,
        ROWS,
        [LN],
        {**PLAIN, "scale": G, "epsilon": 0.0, "correction": 1},
    ),
    "no epsilon, ReduceL2": (
        lambda x: deviation(x) * math.sqrt(N) / deviation(x).mean(by="ReduceL2"),
        ROWS,
        [LN],
        {**PLAIN, "epsilon": 0.0},
    ),
    "L4: epsilon outside, correction 1": (
        lambda x: G * deviation(x) / (unbiased(x).sqrt() + 1e-6) + B,
        ROWS,
        SHORT,
        {**LAST, "epsilon": 1e-6, "outside": True, "correction": 1},
    ),
    "epsilon outside, biased": (
        lambda x: G * deviation(x) / (biased(x).sqrt() + 1e-6) + B,
        ROWS,
        SHORT,
        {**LAST, "epsilon": 1e-6, "outside": True},
    ),
    "epsilon outside, channels first": (
        lambda x: deviation(x, (1,)) / (biased(x, (1,)).sqrt() + 1e-6),
        IMAGE,
        ["Transpose", LN, "Add", "Reciprocal", "Mul", "Transpose"],
        {"axes": (1,), "epsilon": 1e-6, "outside": True},
    ),
    "big epsilon outside": (
        lambda x: deviation(x) / (0.5 + biased(x).sqrt()) * G + B,
        ROWS,
        SHORT,
        {**LAST, "epsilon": 0.5, "outside": True},
    ),
    "sum of squares": (
        lambda x: deviation(x) / (deviation(x).mean(by="ReduceSumSquare") / float(N) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        LAST,
    ),
    "sums over n": (
        lambda x: (x - x.sum() / float(N)) / (biased(x) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        LAST,
    ),
    "mean by MatMul": (
        lambda x: (x - by_contraction(x)) / (by_contraction((x - by_contraction(x)) ** 2) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        LAST,
    ),
    "Einsum": (through_einsum, ROWS, [LN], LAST),
    "scale joined to the root": (tensorflow_form, ROWS, [LN], LAST),
    "scale before": (lambda x: (G * deviation(x)) / (biased(x) + 1e-5).sqrt() + B, ROWS, [LN], LAST),
    "one plus g": (
        lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() * x.sketch.constant(1 + G) + B,
        ROWS,
        [LN],
        {**LAST, "scale": 1 + G},
    ),
    "scale only": (
        lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() * G,
        ROWS,
        [LN],
        {**PLAIN, "scale": G},
    ),
    "shift only": (lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() + B, ROWS, [LN], {**PLAIN, "shift": B}),
    "no affine": (lambda x: deviation(x) / (biased(x) + 1e-5).sqrt(), ROWS, [LN], PLAIN),
    "scalar affine": (
        lambda x: 0.25 * (deviation(x) / (biased(x) + 1e-5).sqrt()) - 3.0,
        ROWS,
        [LN],
        {**PLAIN, "scale": 0.25, "shift": -3.0},
    ),
    "some scales are zero": (
        lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() * np.where(G > 0, G, 0).astype(np.float32) + B,
        ROWS,
        [LN],
        {**LAST, "scale": np.where(G > 0, G, 0)},
    ),
    "shift first": (lambda x: B + G * (deviation(x) / (biased(x) + 1e-5).sqrt()), ROWS, [LN], LAST),
    "mean minus x": (
        lambda x: (x.mean() - x) / (biased(x) + 1e-5).sqrt() * (-G) + B,
        ROWS,
        [LN],
        LAST,
    ),
    "negated": (lambda x: B - (-deviation(x)) / (biased(x) + 1e-5).sqrt() * G, ROWS, [LN], LAST),
    "without kept axes": (
        lambda x: (
            (x - x.mean(keep=False).op("Unsqueeze", np.array([2])))
            / (biased(x) + 1e-5).sqrt().op("Expand", np.array([1, 1, 1]))
            * G
            + B
        ),
        ROWS,
        [LN],
        LAST,
    ),
    "scaled input": (
        lambda x: deviation(x * 0.5) / (biased(x * 0.5) + 1e-5).sqrt() * G + B,
        ROWS,
        [LN],
        {**LAST, "epsilon": 4e-5},
    ),
    "rows and back": (through_rows, ROWS, [LN], LAST),
    "transposed and back": (through_channels_first, ROWS, [LN], LAST),
    "two axes": (
        lambda x: deviation(x, (-2, -1)) / (biased(x, (1, 2)) + 1e-5).sqrt() * np.outer(B[:5], G) + B,
        ROWS,
        [LN],
        {"axes": (1, 2), "epsilon": 1e-5, "scale": np.outer(B[:5], G), "shift": B},
    ),
    "scale on another axis": (
        lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() * G[:5].reshape(5, 1) + B,
        ROWS,
        [LN, "Mul", "Add"],
        {**PLAIN, "scale": G[:5].reshape(5, 1), "shift": B},
    ),
    "operator, affine behind": (lambda x: layer_norm(x, np.ones(N, np.float32)) * G + B, ROWS, [LN], LAST),
    "operator, second affine": (
        lambda x: layer_norm(x, G, B) * 2.0 + 1.0,
        ROWS,
        [LN],
        {**LAST, "scale": 2 * G, "shift": 2 * B + 1},
    ),
    "operator as it is": (lambda x: layer_norm(x, G, B), ROWS, [LN], LAST),
    "rms, Pow": (lambda x: x * ((x**2).mean() + 1e-5).rsqrt() * G, ROWS, [RMS], ROOT),
    "rms, division": (lambda x: x / ((x * x).mean() + 1e-5).sqrt() * G, ROWS, [RMS], ROOT),
    "rms, scale first": (lambda x: (G * x) * ((x * x).mean() + 1e-5).rsqrt(), ROWS, [RMS], ROOT),
    "rms, L2 norm": (
        lambda x: x / (x.mean(by="ReduceL2") * (N**-0.5)),
        ROWS,
        [RMS],
        {**ROOT, "scale": 1.0, "epsilon": 0.0},
    ),
    "rms, shift": (
        lambda x: x / ((x * x).mean() + 1e-5).sqrt() * G + B,
        ROWS,
        [RMS, "Add"],
        {**ROOT, "shift": B},
    ),
    "rms over channels": (
        lambda x: x / ((x * x).mean((1,)) + 1e-5).sqrt() * G.reshape(C4),
        IMAGE,
        ["Transpose", RMS, "Transpose"],
        {**ROOT, "axes": (1,), "scale": G.reshape(C4)},
    ),
    "rms, epsilon outside": (
        lambda x: x / (((x * x).mean()).sqrt() + 1e-5) * G,
        ROWS,
        ["Mul", "ReduceMean", "Sqrt", "Add", "Div", "Mul"],
        {**ROOT, "outside": True},
    ),
    "channels first": (
        lambda x: deviation(x, (1,)) / (biased(x, (1,)) + 1e-5).sqrt() * G.reshape(C4) + B.reshape(C4),
        IMAGE,
        TURNED,
        CHANNELS,
    ),
    "channels first, negative axis": (
        lambda x: deviation(x, (-3,)) / (moments(x, (1,)) + 1e-5).sqrt() * G.reshape(N, 1, 1) + B.reshape(N, 1, 1),
        IMAGE,
        TURNED,
        CHANNELS,
    ),
    "channels turned last": (
        lambda x: layer_norm(x.transpose(0, 2, 3, 1), G, B).transpose(0, 3, 1, 2),
        IMAGE,
        TURNED,
        CHANNELS,
    ),
    "all but the batch": (
        lambda x: deviation(x, (1, 2, 3)) / (biased(x, (1, 2, 3)) + 1e-5).sqrt(),
        IMAGE,
        [LN],
        {"axes": (1, 2, 3), "epsilon": 1e-5},
    ),
    "groups, view": (lambda x: group_view(x) * G.reshape(C4) + B.reshape(C4), IMAGE, GROUPED, GROUPS),
    "groups, moments": (lambda x: group_view(x, moments) * G.reshape(C4) + B.reshape(C4), IMAGE, GROUPED, GROUPS),
    "groups, five axes": (group_5d, IMAGE, GROUPED, GROUPS),
    "groups, by InstanceNormalization": (group_by_instance, IMAGE, GROUPED, GROUPS),
    "instance": (
        lambda x: deviation(x, (2, 3)) / (biased(x, (2, 3)) + 1e-5).sqrt() * G.reshape(C4) + B.reshape(C4),
        IMAGE,
        [IN],
        SPATIAL,
    ),
    "instance, moments": (
        lambda x: deviation(x, (2, 3)) / (moments(x, (2, 3)) + 1e-5).sqrt() * G.reshape(C4) + B.reshape(C4),
        IMAGE,
        [IN],
        SPATIAL,
    ),
    "instance, flat view": (
        lambda x: (
            deviation(x.reshape(0, N, -1)) / (biased(x.reshape(0, N, -1)) + 1e-5).sqrt() * G.reshape(N, 1)
            + B.reshape(N, 1)
        ).reshape(0, N, 4, 6),
        IMAGE,
        [IN],
        SPATIAL,
    ),
    "instance, no affine": (
        lambda x: deviation(x, (2, 3)) * (biased(x, (2, 3)) + 1e-5).rsqrt(),
        IMAGE,
        [IN],
        {"axes": (2, 3), "epsilon": 1e-5},
    ),
    "instance, sequence": (
        lambda x: deviation(x) / (biased(x) + 1e-5).sqrt() * G[:5].reshape(5, 1) + B[:5].reshape(5, 1),
        ROWS,
        [IN],
        {**PLAIN, "scale": G[:5].reshape(5, 1), "shift": B[:5].reshape(5, 1)},
    ),
}


def recognise(model: ir.Model, **options) -> Ledger:
    context = RewriteContext(**options)
    RecogniseNorms(context)(model)
    onnx.checker.check_model(ir.to_proto(model))
    return context.ledger


def inputs(shape: tuple[int | str, ...], batch: int, seed: int) -> torch.Tensor:
    """Rows of spread 1e-4 to 10 and means of up to three spreads."""
    rng = np.random.default_rng(seed)
    dims = [batch if isinstance(dim, str) else dim for dim in shape]
    spread = 10 ** rng.uniform(-4, 1, [batch] + [1] * (len(dims) - 1))
    return torch.from_numpy(spread * (rng.standard_normal(dims) + rng.uniform(-3, 3)))


def evaluate(model: ir.Model, x: torch.Tensor) -> torch.Tensor:
    return Evaluator(model).run({"x": x})["y0"]


def test_there_are_forty_spellings():
    assert len(SPELLINGS) >= 40


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_becomes_one_operator(name, sketch, reference):
    function, shape, expected, what = SPELLINGS[name]
    drawing = sketch()
    x = drawing.input(shape)
    model = drawing.model(function(x) if function is not tensorflow_form else function(x, drawing))
    ledger = recognise(model)
    assert kinds(model) == expected
    assert [row.action for row in ledger] == ["fused"]
    for batch in (2, 7):
        data = inputs(shape, batch, seed=batch)
        expected_values = reference(data, **what)
        difference = (evaluate(model, data) - expected_values).abs().max()
        # attributes and constants are float32 in both; epsilon/r and g/sqrt(r) are rounded once
        assert float(difference) <= 3e-7 * float(expected_values.abs().max()), name


def test_float16_with_upcast(sketch, reference):
    drawing = sketch(dtype=F16)
    model = drawing.model(llama(drawing.input(ROWS)))
    ledger = recognise(model)
    assert kinds(model) == [RMS]
    assert ledger[0].into == RMS
    data = inputs(ROWS, 3, seed=1)
    scale = G.astype(np.float16)
    expected = reference(data, axes=(-1,), epsilon=1e-6, centred=False, scale=scale)
    torch.testing.assert_close(evaluate(model, data), expected, rtol=1e-7, atol=1e-7)


def test_a_computation_in_double_stays_in_double(sketch):
    drawing = sketch()
    wide = drawing.input(ROWS).cast(ir.DataType.DOUBLE)
    model = drawing.model((deviation(wide) / (biased(wide) + 1e-5).sqrt()).cast(F32))
    recognise(model)
    assert kinds(model) == ["Cast", LN, "Cast"]
    assert model.graph[1].outputs[0].dtype == ir.DataType.DOUBLE


def test_moments_are_said_in_the_ledger(sketch):
    drawing = sketch()
    x = drawing.input(ROWS)
    ledger = recognise(drawing.model((x - x.mean()) / (moments(x) + 1e-5).sqrt()))
    assert "equals the two-pass form in real numbers only" in ledger[0].reason


def test_epsilon_outside_is_approximated_only_on_request(sketch):
    drawing = sketch()
    x = drawing.input(ROWS)
    model = drawing.model(deviation(x) / (unbiased(x).sqrt() + 1e-6) * G + B)
    ledger = recognise(model, approximate=True)
    assert kinds(model) == [LN]
    assert "approximate" in ledger[0].reason
    data = inputs(ROWS, 4, seed=0)
    exact = deviation64(data) / (data.std(-1, keepdim=True) + 1e-6) * torch.from_numpy(G) + torch.from_numpy(B)
    distance = float((evaluate(model, data) - exact).abs().max())
    assert 1e-8 < distance < 0.1


def deviation64(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


def test_worked_numbers(sketch):
    """The LayerNorm of the conventions table: no epsilon, correction 0; then epsilon 1e-5 under the root."""
    data = torch.tensor(
        [[0.76992553, 0.00166408, 0.5785207, 0.7359749], [0.55730516, 0.5911572, 0.5388567, 0.5622644]],
        dtype=torch.float64,
    )
    without = [[0.8046649, -1.6839927, 0.18464021, 0.6946874], [-0.2714092, 1.5333978, -1.2549816, -0.00701022]]
    with_epsilon = [[0.8046, -1.6839, 0.1846, 0.6947], [-0.2676, 1.5121, -1.2375, -0.0069]]
    for epsilon, expected, tolerance in ((0.0, without, 2e-6), (1e-5, with_epsilon, 6e-5)):
        drawing = sketch()
        x = drawing.input(("n", 4))
        model = drawing.model(deviation(x) / (biased(x) + epsilon).sqrt())
        recognise(model)
        assert kinds(model) == [LN]
        torch.testing.assert_close(evaluate(model, data), torch.tensor(expected).double(), rtol=0, atol=tolerance)


def test_node_carries_the_module_path_of_its_norm(sketch):
    drawing = sketch()
    x = drawing.input(ROWS)
    model = drawing.model(deviation(x) / (biased(x) + 1e-5).sqrt() * G)
    for node in model.graph:
        node.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'encoder', 'encoder.norm', 'op']"
    ledger = recognise(model)
    assert ledger[0].where == "encoder.norm"
    assert model.graph[0].metadata_props[WHERE] == "encoder.norm"


def test_old_operator_set_is_raised_for_rms_and_only_for_it(sketch):
    for function, version in ((lambda x: x / ((x * x).mean() + 1e-5).sqrt(), 23), (lambda x: layer_norm(x, G), 18)):
        drawing = sketch(opset=18)
        model = drawing.model(function(drawing.input(ROWS)))
        recognise(model)
        assert model.graph.opset_imports[""] == version


def test_shared_normalized_values_with_two_affines(sketch, reference):
    drawing = sketch()
    x = drawing.input(ROWS)
    z = deviation(x) / (biased(x) + 1e-5).sqrt()
    model = drawing.model(z * G, z * 2.0 + B)
    recognise(model)
    assert kinds(model) == [LN, "Mul", "Mul", "Add"]
    data = inputs(ROWS, 2, seed=5)
    found = Evaluator(model).run({"x": data})
    torch.testing.assert_close(found["y0"], reference(data, **{**PLAIN, "scale": G}), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        found["y1"], reference(data, **{**PLAIN, "scale": 2.0, "shift": B}), rtol=1e-6, atol=1e-6
    )


def test_residual_and_chain_of_norms(sketch, reference):
    drawing = sketch()
    x = drawing.input(ROWS)
    h = x + (deviation(x) / (biased(x) + 1e-5).sqrt() * G)
    model = drawing.model(deviation(h) / (biased(h) + 1e-5).sqrt() * G + B)
    ledger = recognise(model)
    assert kinds(model) == [LN, "Add", LN]
    assert len(ledger) == 2
    data = inputs(ROWS, 3, seed=2)
    inner = data + reference(data, **{**PLAIN, "scale": G})
    torch.testing.assert_close(evaluate(model, data), reference(inner, **LAST), rtol=1e-6, atol=1e-6)
