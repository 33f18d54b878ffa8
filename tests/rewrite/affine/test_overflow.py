"""No constant of a rewritten graph is infinite: what cannot be stored is not composed and not absorbed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

LARGE = {np.float16: 300.0, np.float32: 1e30, np.float64: 1e200}


def finite(result):
    for item in result.after.graph.initializer:
        array = numpy_helper.to_array(item)
        assert array.dtype.kind != "f" or np.isfinite(array).all(), (item.name, array)
    return result


@pytest.mark.parametrize("between", [None, "LeakyRelu", "MaxPool"])
@pytest.mark.parametrize("dtype", LARGE)
def test_two_large_factors_are_not_composed(graph, fold, dtype, between):
    g = graph(dtype=dtype)
    y = g.op("Mul", g.input("x", ["N", 2, 4]), np.array(LARGE[dtype]))
    if between is not None:
        y = g.op(between, y, **({"kernel_shape": [2]} if between == "MaxPool" else {}))
    g.output(g.op("Mul", y, np.array(LARGE[dtype])))
    result = finite(fold(g))
    assert result.ops["Mul"] == 2
    assert "overflows" in result.reasons
    x = np.full((1, 2, 4), 1 / LARGE[dtype], dtype)
    result.agree({"x": x}, 1e-2)


def weights(g, kind, rng):
    """A linear operator from 8 features with weights of 10, and where its result is 10 times the input."""
    if kind == "MatMul":
        return lambda x: g.op(kind, x, np.full((8, 2), 10.0))
    if kind == "MatMul with bias":
        return lambda x: g.op("Add", g.op("MatMul", x, np.full((8, 2), 10.0)), rng.normal(size=2))
    if kind == "Gemm":
        return lambda x: g.op(kind, x, np.full((2, 8), 10.0), rng.normal(size=2), transB=1)
    shape = (8, 2, 1) if kind == "ConvTranspose" else (2, 8, 3 if kind == "padded" else 1)
    pads = {"pads": [1, 1]} if kind == "padded" else {}
    return lambda x: g.op("Conv" if kind == "padded" else kind, x, np.full(shape, 10.0), **pads)


@pytest.mark.parametrize("kind", ["MatMul", "MatMul with bias", "Gemm", "Conv", "ConvTranspose", "padded"])
def test_a_large_shift_in_front_is_not_summed_into_a_bias(graph, fold, kind):
    """Eight times 10 times 1e3 is more than float16 holds, though what the shift brings back may not be."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float16)
    features = kind in ("MatMul", "MatMul with bias", "Gemm")
    x = g.input("x", ["N", 8] if features else ["N", 8, 6])
    x = g.op("Add", x, np.full((8,) if features else (8, 1), 1e3))
    g.output(weights(g, kind, rng)(x))
    result = finite(fold(g))
    assert result.actions == ["kept"]


@pytest.mark.parametrize("kind", ["MatMul with bias", "Gemm"])
def test_a_large_scale_behind_is_not_taken(graph, fold, kind):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float16)
    y = weights(g, kind, rng)(g.input("x", ["N", 8]))
    g.output(g.op("Mul", y, np.array(60000.0)))
    assert finite(fold(g)).actions == ["kept"]


def test_half_a_map_is_not_taken_where_the_other_half_overflows(graph, fold):
    """s x + t = s (x + t / s): with s = 1e-3 and t = 100 the shift in front of the scale would be 1e5."""
    for scale, halved in ((1e-3, False), (0.5, True)):
        g = graph(dtype=np.float16)
        y = g.op("Add", g.op("Mul", g.input("x", ["N", 4, 8]), np.full(8, scale)), np.arange(93.0, 101.0))
        g.output(g.op("MatMul", g.op("LeakyRelu", y), np.full((8, 2), 0.1)))
        result = finite(fold(g))
        assert result.actions == ["kept"]
        assert ("its scale went into" in result.reasons) == halved


@pytest.mark.parametrize("epsilon", [1e-5, 0.0])
@pytest.mark.parametrize("scale", [1e-200, 1e-22, 1e20, 1e200])
def test_an_epsilon_that_float32_does_not_hold_is_not_written(graph, fold, scale, epsilon):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Transpose", g.op("Mul", g.input("x", ["N", 8, 3]), np.array(scale)), perm=[0, 2, 1])
    g.output(g.op("LayerNormalization", x, rng.normal(size=8), axis=-1, epsilon=epsilon, name="norm"))
    result = fold(g)
    (norm,) = (node for node in result.after.graph.node if node.op_type == "LayerNormalization")
    written = next((item.f for item in norm.attribute if item.name == "epsilon"), 1e-5)
    assert np.isfinite(written)
    assert (written > 0) == (epsilon > 0)
    assert "takes the epsilon of LayerNormalization 'norm' out of the range of float32" in result.reasons
