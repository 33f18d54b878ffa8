"""A norm of values far from zero is not folded forward: in float32 that would lose what the norm had saved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime_outputs import run_onnxruntime

from normdeploy.rewrite.affine import far_from_zero

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)
WIDTH = 6


def columns(rng, far):
    """Means, variances, scales and shifts of a norm whose inputs are about ``far`` deviations from zero."""
    variance = rng.uniform(0.2, 3, WIDTH)
    mean = far * np.sqrt(variance) * rng.uniform(0.7, 1.3, WIDTH) * rng.choice([-1, 1], WIDTH)
    return mean, variance, rng.uniform(0.2, 2, WIDTH), rng.normal(size=WIDTH)


def linear(g, y, rng, kind):
    if kind == "Conv":
        y = g.op("Unsqueeze", y, np.array([2]))
        return g.op("Conv", y, rng.normal(size=(4, WIDTH, 1)), rng.normal(size=4))
    if kind == "Gemm":
        return g.op("Gemm", y, rng.normal(size=(WIDTH, 4)), rng.normal(size=4))
    return g.op("MatMul", y, rng.normal(size=(WIDTH, 4)))


def standardized(graph, rng, kind, far):
    g = graph()
    mean, variance, gamma, beta = columns(rng, far)
    y = g.op("BatchNormalization", g.input("x", ["N", WIDTH]), gamma, beta, mean, variance, epsilon=1e-5, name="norm")
    g.output(linear(g, y, rng, kind))
    moved = gamma * mean / np.sqrt(np.float64(np.float32(1e-5)) + variance)
    return g, np.sqrt((moved**2).mean() / (gamma**2 + beta**2).mean())


@given(SEED, st.sampled_from(["Conv", "Gemm", "MatMul"]), st.floats(0.5, 12))
def test_a_norm_is_folded_forward_where_its_inputs_are_near_zero(graph, fold, seed, kind, far):
    rng = np.random.default_rng(seed)
    g, expected = standardized(graph, rng, kind, far)
    if abs(expected - far_from_zero.LARGEST) < 1e-4:
        return
    result = fold(g).agree(g.feeds(rng, N=3))
    (row,) = [row for row in result.ledger if row.kind == "BatchNormalization"]
    assert row.detail[far_from_zero.OFFSET] == pytest.approx(expected, rel=1e-6)
    assert row.action == ("kept" if expected > far_from_zero.LARGEST else "folded")
    assert ("BatchNormalization" in result.ops) == (row.action == "kept")
    if row.action == "kept":
        assert f"it removes an offset {expected:.2g} times the size of its results" in row.reason
        assert "centre the data" in row.reason


@given(SEED, st.sampled_from([2.0, 50.0]), st.booleans())
def test_a_standardization_written_out(graph, fold, seed, far, divides):
    rng = np.random.default_rng(seed)
    g = graph()
    mean, variance, *_ = columns(rng, far)
    deviation = np.sqrt(variance)
    y = g.op("Sub", g.input("x", ["N", WIDTH]), mean)
    y = g.op("Div", y, deviation) if divides else g.op("Mul", y, 1 / deviation)
    g.output(linear(g, y, rng, "Gemm"))
    result = fold(g).agree(g.feeds(rng, N=3))
    assert result.actions == ["kept" if np.sqrt((mean**2 / variance).mean()) > far_from_zero.LARGEST else "folded"]


def error(proto, feeds, truth):
    return float(np.sqrt(np.square(run_onnxruntime(proto, feeds)[0] - truth).mean()))


def test_what_it_saves(graph, fold, monkeypatch):
    """Columns a thousand deviations from zero: what stays subtracts first, as written; folded it is 100 times worse."""
    rng = np.random.default_rng(5)
    mean, variance, gamma, beta = columns(rng, 1000.0)
    weight = rng.normal(size=(WIDTH, 4)).astype(np.float32)
    mean, variance, gamma, beta = (value.astype(np.float32) for value in (mean, variance, gamma, beta))
    x = (mean + np.sqrt(variance) * rng.normal(size=(500, WIDTH))).astype(np.float32)
    wide = [value.astype(np.float64) for value in (x, mean, variance, gamma, beta, weight)]
    truth = ((wide[0] - wide[1]) / np.sqrt(wide[2]) * wide[3] + wide[4]) @ wide[5]

    def folded():
        g = graph(dtype=np.float32)
        y = g.op("Sub", g.input("x", ["N", WIDTH]), mean)
        y = g.op("Add", g.op("Mul", g.op("Div", y, np.sqrt(wide[2])), gamma), beta)
        g.output(g.op("MatMul", y, weight))
        return fold(g)

    kept = folded()
    assert kept.actions == ["kept"]
    assert [node.op_type for node in kept.after.graph.node] == ["Sub", "Div", "Mul", "Add", "MatMul"]
    monkeypatch.setattr(far_from_zero, "LARGEST", np.inf)
    forced = folded()
    assert forced.actions == ["folded"]
    assert error(forced.after, {"x": x}, truth) > 100 * error(kept.after, {"x": x}, truth)


@given(SEED)
def test_backward_nothing_is_lost(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph()
    mean, variance, gamma, beta = columns(rng, 50.0)
    y = g.op("Gemm", g.input("x", ["N", 3]), rng.normal(size=(3, WIDTH)))
    g.output(g.op("BatchNormalization", y, gamma, beta, mean, variance))
    assert fold(g).folded().agree(g.feeds(rng, N=3)).ops == {"Gemm": 1}


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_what_looks_at_differences_alone_needs_no_offset_taken_off(graph, fold, op_type):
    """Rows a thousand deviations from zero: what stands behind the offset makes of them what it makes of the others."""
    rng = np.random.default_rng(3)
    offset = rng.uniform(500, 2000, (WIDTH, 1)).astype(np.float32)

    def network(*, kept):
        g = graph(dtype=np.float32)
        y = g.op("Sub", g.input("x", ["N", WIDTH, 7]), offset)
        y = g.op("Relu", y) if kept else y
        g.output(g.op(op_type, g.op("Transpose", y, perm=[0, 2, 1]), axis=1))
        return fold(g)

    result = network(kept=False)
    assert result.actions == ["folded"]
    assert result.ops == {"Transpose": 1, op_type: 1}
    assert network(kept=True).actions == ["kept"]
    x = (offset + rng.normal(size=(30, WIDTH, 7))).astype(np.float32)
    centred = (x.astype(np.float64) - offset).transpose(0, 2, 1)
    soft = np.exp(centred) / np.exp(centred).sum(1, keepdims=True)
    hard = (centred == centred.max(1, keepdims=True)).astype(np.float64)
    truth = {"Softmax": soft, "LogSoftmax": np.log(soft), "Hardmax": hard}[op_type]
    assert error(result.after, {"x": x}, truth) < 2 * error(result.before, {"x": x}, truth) + 1e-9


@pytest.mark.parametrize("between", [(), ("Identity",), ("Mul",)])
def test_maps_in_a_row_are_still_one(graph, fold, between):
    rng = np.random.default_rng(0)
    g = graph()
    mean, variance, gamma, beta = columns(rng, 50.0)
    y = g.op("BatchNormalization", g.input("x", ["N", WIDTH]), gamma, beta, mean, variance, name="norm")
    for op_type in between:
        y = g.op(op_type, y, *([rng.uniform(0.5, 2, WIDTH)] if op_type == "Mul" else []))
    y = g.op("Mul", y, rng.uniform(0.5, 2, WIDTH), name="scale")
    g.output(linear(g, y, rng, "MatMul"))
    result = fold(g).agree(g.feeds(rng, N=3))
    assert result.ops == {"BatchNormalization": 1, "MatMul": 1}
    assert sorted(result.actions) == ["folded", "kept"]


@pytest.mark.parametrize("far", [1.0, 50.0])
def test_a_constant_map_at_the_border_is_no_way_round(graph, fold, far):
    """In front of a padded convolution of a known size a shift may become a map of positions: not from far away."""
    rng = np.random.default_rng(0)
    g = graph()
    mean, variance, gamma, beta = columns(rng, far)
    y = g.op("BatchNormalization", g.input("x", ["N", WIDTH, 5, 5]), gamma, beta, mean, variance)
    g.output(g.op("Conv", y, rng.normal(size=(2, WIDTH, 3, 3)), pads=[1, 1, 1, 1], strides=[2, 2]))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert result.actions == ["kept" if far > far_from_zero.LARGEST else "folded"]


@pytest.mark.parametrize("far", [1.0, 50.0])
def test_what_centres_in_a_step_of_its_own_keeps_it(graph, fold, far):
    """(x - m) / sigma, then a BatchNormalization of another module."""
    rng = np.random.default_rng(0)
    g = graph()
    mean, variance, *_ = columns(rng, far)
    y = g.op("Div", g.op("Sub", g.input("x", ["N", WIDTH]), mean), np.sqrt(variance))
    g.output(g.op("Sigmoid", g.batch_norm(y, WIDTH, rng)))
    result = fold(g).agree(g.feeds(rng, N=2))
    if far > far_from_zero.LARGEST:
        assert result.ops == {"Sub": 1, "Div": 1, "BatchNormalization": 1, "Sigmoid": 1}
        assert result.actions == ["kept", "kept"]
    else:
        assert result.ops == {"BatchNormalization": 1, "Sigmoid": 1}


@pytest.mark.parametrize("far", [1.0, 50.0])
@pytest.mark.parametrize("centred", [True, False])
def test_half_a_map_is_no_way_round(graph, fold, centred, far):
    """Along the last of three axes a map takes two passes, so that its shift alone might go, and then its scale."""
    rng = np.random.default_rng(0)
    g = graph()
    mean, variance, *_ = columns(rng, far)
    x, deviation = g.input("x", ["N", 4, WIDTH]), np.sqrt(variance)
    if centred:
        y = g.op("Div", g.op("Sub", x, mean), deviation)
    else:
        y = g.op("Add", g.op("Mul", x, 1 / deviation), -mean / deviation)
    g.output(g.op("Add", g.op("MatMul", y, rng.normal(size=(WIDTH, 3))), rng.normal(size=3)))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert result.actions == ["kept" if far > far_from_zero.LARGEST else "folded"]
    if far > far_from_zero.LARGEST and centred:
        assert [node.op_type for node in result.after.graph.node] == ["Sub", "Div", "MatMul", "Add"]
    if far > far_from_zero.LARGEST and not centred:  # x + t / s stays, in front of any sum
        assert [node.op_type for node in result.after.graph.node] == ["Add", "MatMul", "Add"]
