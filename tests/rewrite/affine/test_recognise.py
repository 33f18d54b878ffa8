"""What counts as an affine map, what does not, and what must stay with a reason."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from normdeploy.rewrite import rewrite

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
STEPS = st.sampled_from(["Mul", "Div", "Add", "Sub", "reversed Sub", "Neg", "BatchNormalization"])


@given(SEED, st.lists(STEPS, min_size=1, max_size=6))
def test_any_chain_is_one_map(graph, fold, seed, steps):
    """Arithmetic in any order behind a convolution: one row per run of arithmetic, one per BatchNormalization."""
    rng = np.random.default_rng(seed)
    g = graph()
    y = g.op("Conv", g.input("x", ["N", 2, 4, 4]), rng.normal(size=(3, 2, 1, 1)))
    for kind in steps:
        constant = rng.uniform(0.5, 2, [(3, 1, 1), (1, 3, 1, 1), (), (1, 1)][rng.integers(4)])
        if kind == "BatchNormalization":
            y = g.batch_norm(y, 3, rng)
        elif kind == "Neg":
            y = g.op("Neg", y)
        elif kind == "reversed Sub":
            y = g.op("Sub", constant, y)
        elif kind in ("Mul", "Add") and rng.integers(2):
            y = g.op(kind, constant, y)
        else:
            y = g.op(kind, y, constant)
    g.output(y)
    result = fold(g).agree(g.feeds(rng, N=2))
    if "Neg" not in steps:
        assert result.ops == {"Conv": 1}
        runs = sum(
            kind == "BatchNormalization" or index == 0 or steps[index - 1] == "BatchNormalization"
            for index, kind in enumerate(steps)
        )
        assert result.actions == ["folded"] * runs


def test_the_spelled_out_evaluation_form(graph, fold):
    """(x - m) / sqrt(v + e) * g + b with everything but x constant."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 3]), rng.normal(size=(3, 4)))
    deviation = g.op("Sqrt", g.op("Add", rng.uniform(0.1, 2, 4), np.float64(1e-5)))
    y = g.op("Div", g.op("Sub", y, rng.normal(size=(1, 4))), deviation)
    g.output(g.op("Add", g.op("Mul", rng.normal(size=4), y), rng.normal(size=4)))
    result = fold(g).folded(1).agree(g.feeds(rng, N=2))
    assert result.ops == {"MatMul": 1, "Add": 1}


@pytest.mark.parametrize(
    "shape", [(4, 4), (2, 3, 4, 4)], ids=["varies along two axes", "enlarges x"]
)  # fmt: skip
def test_no_affine_map(graph, fold, shape):
    rng = np.random.default_rng(0)
    g = graph()
    g.output(g.op("Mul", g.input("x", [1, 3, 4, 4]), rng.normal(size=shape)))
    result = fold(g).agree(g.feeds(rng))
    assert not result.actions
    assert result.ops == {"Mul": 1}


def test_statistics_of_axis_0_alone_are_one_map_in_two_passes(graph, fold):
    """Batch normalization of (N, T, C) over axis 0: no product has a weight per position; it stays, accounted for."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 5, 3]), rng.normal(size=(3, 4)))
    y = g.op("Div", g.op("Sub", y, rng.normal(size=(5, 4))), rng.uniform(0.5, 2, (5, 4)))
    y = g.op("Add", g.op("Mul", rng.normal(size=(5, 4)), y), rng.normal(size=(5, 4)))
    g.output(g.op("Tanh", y))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert result.actions == ["kept"]
    assert result.ops == {"MatMul": 1, "Mul": 1, "Add": 1, "Tanh": 1}


def test_a_constant_over_something_is_none(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.output(g.op("Div", np.float64(2), g.input("x", [1, 3])))
    assert not fold(g).agree(g.feeds(rng)).actions


def test_a_constant_of_unknown_fit_is_none(graph, fold):
    """x [N, C] with dynamic C and a vector of 3: it might enlarge an x of one channel."""
    rng = np.random.default_rng(0)
    g = graph()
    g.output(g.op("Mul", g.input("x", ["N", "C"]), rng.normal(size=3)))
    assert not fold(g).agree(g.feeds(rng, N=2, C=3)).actions


def test_a_bias_is_no_map(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 3]), rng.normal(size=(3, 4)))
    g.output(g.op("Add", y, rng.normal(size=4)))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert not result.actions
    assert result.ops == {"MatMul": 1, "Add": 1}


def test_integers_are_none(graph, fold):
    g = graph()
    y = g.op("Add", g.input("x", [3], np.int64), np.array(2))
    g.output(y, np.int64)
    assert not fold(g).actions


def activation(g, x, kind):
    if kind == "gelu":
        inner = g.op("Add", g.op("Erf", g.op("Div", x, np.float64(2**0.5))), np.float64(1))
        return g.op("Mul", g.op("Mul", x, inner), np.float64(0.5))
    if kind == "gelu, half first":
        inner = g.op("Add", g.op("Erf", g.op("Mul", x, np.float64(0.5**0.5))), np.float64(1))
        return g.op("Mul", g.op("Mul", x, np.float64(0.5)), inner)
    if kind == "tanh gelu":
        cubed = g.op("Mul", g.op("Pow", x, np.float64(3)), np.float64(0.044715))
        inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cubed), np.float64(0.7978845608)))
        return g.op("Mul", g.op("Mul", x, np.float64(0.5)), g.op("Add", inner, np.float64(1)))
    if kind == "tanh gelu, factored":  # as Bloom writes it
        squared = g.op("Mul", g.op("Mul", x, np.float64(0.044715)), x)
        factors = g.op("Mul", x, np.float64(0.79788456)), g.op("Add", squared, np.float64(1))
        inner = g.op("Tanh", g.op("Mul", *factors))
        return g.op("Mul", g.op("Mul", x, np.float64(0.5)), g.op("Add", inner, np.float64(1)))
    if kind == "quick gelu":
        return g.op("Mul", x, g.op("Sigmoid", g.op("Mul", x, np.float64(1.702))))
    inner = g.op("Clip", g.op("Add", x, np.float64(3)), np.float64(0), np.float64(6))
    return g.op("Div", g.op("Mul", x, inner), np.float64(6))


KINDS = ["gelu", "gelu, half first", "tanh gelu", "tanh gelu, factored", "quick gelu", "hard swish"]


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_of_an_activation_stay(graph, fold, kind):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 3]), rng.normal(size=(3, 4)))
    y = activation(g, y, kind)
    g.output(g.op("MatMul", y, rng.normal(size=(4, 2))))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert not result.actions
    assert len(result.after.graph.node) == len(g.nodes)


def test_a_gate_that_another_value_feeds_is_no_activation(graph, fold):
    """tanh(x (1 + 0.044715 z x)) 0.5 x with a z of its own: the closing 0.5 goes into the next layer."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 3]), rng.normal(size=(3, 4)))
    other = g.op("Mul", g.op("Mul", g.input("z", ["N", 4]), np.float64(0.044715)), y)
    inner = g.op("Tanh", g.op("Mul", y, g.op("Add", other, np.float64(1))))
    g.output(g.op("MatMul", g.op("Mul", g.op("Mul", y, np.float64(0.5)), inner), rng.normal(size=(4, 2))))
    assert "folded" in fold(g).agree(g.feeds(rng, N=2)).actions


def test_an_affine_map_before_an_activation_is_still_found(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 3]), rng.normal(size=(3, 4)))
    y = activation(g, g.op("Mul", y, rng.normal(size=4)), "gelu")
    g.output(g.op("MatMul", y, rng.normal(size=(4, 2))))
    fold(g).folded(1).agree(g.feeds(rng, N=2))


@pytest.mark.parametrize(
    ("variance", "mean", "words"),
    [
        ([1.0, -2.0, 1.0], [0.0] * 3, "its running variance plus epsilon is not positive in channel 1"),
        ([1.0, 1.0, float("nan")], [0.0] * 3, "not positive in channel 2"),
        ([1.0] * 3, [0.0, float("inf"), 0.0], "its parameters hold NaN or infinity"),
    ],
)
def test_broken_statistics_stay_and_are_named(graph, fold, variance, mean, words):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Conv", g.input("x", ["N", 2, 4]), rng.normal(size=(3, 2, 1)))
    g.output(g.op("BatchNormalization", y, np.ones(3), np.zeros(3), np.array(mean), np.array(variance)))
    result = fold(g).kept(words)
    assert result.ops == {"Conv": 1, "BatchNormalization": 1}


def test_batch_statistics_are_never_folded(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Conv", g.input("x", ["N", 2, 4]), rng.normal(size=(3, 2, 1)))
    operands = [np.ones(3), np.zeros(3), np.zeros(3), np.ones(3)]
    y, _, _ = g.op("BatchNormalization", y, *operands, training_mode=1, outputs=3)
    g.output(y)
    result = fold(g).kept("batch")
    assert result.ops["BatchNormalization"] == 1


def test_zero_variance_and_a_small_epsilon_in_float16(graph, fold):
    """In float16 1e-8 is 0, and the fold of whoever computes in the weight's type is NaN."""
    g = graph(dtype=np.float16)
    weight = np.full((2, 1, 1), 2.0**-12)
    y = g.op("Conv", g.input("x", ["N", 1, 4]), weight)
    operands = [np.array([0.5, 1.0]), np.array([1.0, 2.0]), np.zeros(2), np.array([0.0, 1.0])]
    g.output(g.op("BatchNormalization", y, *operands, epsilon=1e-8))
    result = fold(g).folded()
    epsilon = float(np.float32(1e-8))
    expected = weight[:, 0, 0] * np.array([0.5 / np.sqrt(epsilon), 1 / np.sqrt(1 + epsilon)])
    stored = result.weight("constant_0")[:, 0, 0]
    np.testing.assert_array_equal(stored, expected.astype(np.float16))
    assert np.isfinite(stored).all()


def test_float16_overflow_of_the_bias_is_refused(graph, fold):
    g = graph(dtype=np.float16)
    y = g.op("Conv", g.input("x", ["N", 1, 4]), np.ones((2, 1, 1)))
    operands = [np.ones(2), np.zeros(2), np.full(2, 100.0), np.zeros(2)]
    g.output(g.op("BatchNormalization", y, *operands, epsilon=1e-8))
    fold(g).kept("would overflow float16")


def old_batch_norm(outputs, opset, **attributes):
    rng = np.random.default_rng(0)
    names = ["scale", "bias", "mean", "var"]
    initializers = [onnx.numpy_helper.from_array(rng.uniform(0.5, 2, 3).astype(np.float32), name) for name in names]
    nodes = [helper.make_node("BatchNormalization", ["x", *names], outputs, **attributes)]
    values = [helper.make_tensor_value_info(name, 1, ["N", 3]) for name in ("x", "y")]
    values += [helper.make_tensor_value_info(name, 1, [3]) for name in outputs[1:]]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4))


def test_old_training_outputs_mean_batch_statistics():
    (row,) = rewrite(old_batch_norm(["y", "new_mean"], 9)).ledger
    assert row.action == "kept"
    assert "batch" in row.reason
