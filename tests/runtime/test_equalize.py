from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from normdeploy.graph import Evaluator
from normdeploy.runtime.tuning.equalize import equalize


def _model(text: str, weights: dict[str, np.ndarray]) -> ir.Model:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]>\n' + text)
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.checker.check_model(model)
    return ir.from_proto(model)


def _run(model: ir.Model, x: np.ndarray) -> torch.Tensor:
    return Evaluator(ir.from_proto(ir.to_proto(model))).run({"x": x})["y"]  # weights as they are written: in float32


def _weights(model: ir.Model) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in ir.to_proto(model).graph.initializer}


def _uneven(draw: np.random.Generator, *shape: int) -> np.ndarray:
    """Return weights whose output channels differ by orders of magnitude, as folded normalizations leave them."""
    scale = 10.0 ** draw.uniform(-2, 2, shape[0]).reshape((-1,) + (1,) * (len(shape) - 1))
    return draw.normal(size=shape) * scale


@settings(max_examples=30, deadline=None)
@given(
    groups=st.sampled_from([1, 2, 4]),
    between=st.sampled_from(["Relu(c)", "LeakyRelu<alpha = 0.1>(c)", "MaxPool<kernel_shape = [2, 2]>(c)"]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_convolutions_keep_their_function_and_share_their_ranges(groups, between, bias, seed):
    draw = np.random.default_rng(seed)
    weights = {
        "W1": _uneven(draw, 8, 3, 3, 3),
        "W2": draw.normal(size=(4, 8 // groups, 2, 2)),
        "b2": draw.normal(size=4),
    }
    if bias:
        weights["b1"] = draw.normal(size=8)
    first = "Conv(x, W1, b1)" if bias else "Conv(x, W1)"
    model = _model(
        f"n (float[N, 3, 8, 8] x) => (float[N, 4, H, K] y) {{ c = {first} r = {between} "
        f"y = Conv<group = {groups}>(r, W2, b2) }}",
        weights,
    )
    x = draw.normal(size=(2, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    assert equalize(model) == 1
    after = _run(model, x)
    assert float((after - before).abs().max() / before.abs().max()) < 1e-5
    found = _weights(model)
    range1 = np.abs(found["W1"]).reshape(8, -1).max(axis=1)
    second = found["W2"].reshape(groups, 4 // groups, 8 // groups, -1)
    range2 = np.abs(second).max(axis=(1, 3)).reshape(8)
    np.testing.assert_allclose(range1, range2, rtol=1e-2)


@pytest.mark.parametrize("transposed", [0, 1])
def test_matrix_products_after_global_pooling(transposed):
    draw = np.random.default_rng(transposed)
    dense = draw.normal(size=(8, 5))
    weights = {
        "W1": _uneven(draw, 8, 3, 3, 3), "b1": draw.normal(size=8),
        "W2": dense.T if transposed else dense, "b2": draw.normal(size=5),
        "W3": _uneven(draw, 5, 4).T if transposed else _uneven(draw, 5, 4),
    }  # fmt: skip
    model = _model(
        f"""n (float[N, 3, 8, 8] x) => (float[N, 4] y) {{
            c = Conv(x, W1, b1) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
            g = Gemm<transB = {transposed}>(f, W2, b2) q = Relu(g) y = Gemm<transB = {transposed}>(q, W3) }}""",
        weights,
    )
    x = draw.normal(size=(3, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    assert equalize(model) == 2
    assert float((_run(model, x) - before).abs().max() / before.abs().max()) < 1e-5
    found = _weights(model)
    range1 = np.abs(found["W1"]).reshape(8, -1).max(axis=1)
    second = found["W2"].T if transposed else found["W2"]
    np.testing.assert_allclose(range1, np.abs(second).max(axis=1), rtol=1e-2)


@pytest.mark.parametrize(
    "body",
    [
        "c = Conv(x, W1) r = Sigmoid(c) y = Conv(r, W2)",
        "c = Conv(x, W1) r = Relu(c) a = Conv(r, W2) s = ReduceMean(r) y = Add(a, s)",
        "c = Conv(x, W1) r = Relu(c) a = Conv(r, W2) b = Conv(r, W2) y = Add(a, b)",
        "c = Conv(x, W1) r = Relu(c) d = Neg(W1) e = ReduceMean(d) a = Conv(r, W2) y = Add(a, e)",
    ],
)
def test_what_must_not_move_stays(body):
    draw = np.random.default_rng(0)
    model = _model(
        f"n (float[N, 3, 8, 8] x) => (float[N, 4, H, K] y) {{ {body} }}",
        {"W1": _uneven(draw, 8, 3, 3, 3), "W2": draw.normal(size=(4, 8, 1, 1))},
    )
    before = _weights(model)
    assert equalize(model) == 0
    for name, value in _weights(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_dead_channels_stay_dead():
    draw = np.random.default_rng(0)
    first, second = _uneven(draw, 8, 3, 3, 3), draw.normal(size=(4, 8, 1, 1))
    first[2], second[:, 5] = 0, 0
    model = _model(
        "n (float[N, 3, 8, 8] x) => (float[N, 4, H, K] y) { c = Conv(x, W1) r = Relu(c) y = Conv(r, W2) }",
        {"W1": first, "W2": second},
    )
    x = draw.normal(size=(2, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    assert equalize(model) == 1
    found = _weights(model)
    assert np.isfinite(found["W1"]).all()
    assert (found["W1"][2] == 0).all()
    assert float((_run(model, x) - before).abs().max() / before.abs().max()) < 1e-5


def _ranges(weight: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(weight).max(axis=tuple(at for at in range(weight.ndim) if at != axis))


def test_a_residual_stream_shares_its_scales_between_all_that_write_and_read_it():
    draw = np.random.default_rng(0)
    model = _model(
        "n (float[N, 3, 8, 8] x) => (float[N, 4, H, K] y) { c = Conv(x, W1, b1) r = Relu(c) "
        "d = Conv<pads = [1, 1, 1, 1]>(r, V) e = Add(r, d) y = Conv(e, W2) }",
        {
            "W1": _uneven(draw, 8, 3, 3, 3),
            "b1": draw.normal(size=8),
            "V": _uneven(draw, 8, 8, 3, 3),
            "W2": draw.normal(size=(4, 8, 1, 1)),
        },
    )
    x = draw.normal(size=(2, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    assert equalize(model) == 1
    assert float((_run(model, x) - before).abs().max() / before.abs().max()) < 1e-5
    found = _weights(model)
    written = np.maximum(_ranges(found["W1"], 0), _ranges(found["V"], 0))
    read = np.maximum(_ranges(found["W2"], 1), _ranges(found["V"], 1))
    np.testing.assert_allclose(written, read, rtol=2e-2)


@pytest.mark.parametrize("rank", [2, 3])
def test_matrix_products_with_their_bias_behind_them(rank):
    draw = np.random.default_rng(1)
    dims = "N, 5, 8" if rank == 3 else "N, 8"
    model = _model(
        f"n (float[{dims}] x) => (float[{dims.replace('8', '4')}] y) "
        "{ c = MatMul(x, W1) d = Add(b1, c) r = Relu(d) y = MatMul(r, W2) }",
        {"W1": _uneven(draw, 6, 8).T, "b1": draw.normal(size=6), "W2": draw.normal(size=(6, 4))},
    )
    x = draw.normal(size=(3, 5, 8) if rank == 3 else (3, 8)).astype(np.float32)
    before = _run(model, x)
    assert equalize(model) == 1
    assert float((_run(model, x) - before).abs().max() / before.abs().max()) < 1e-5
    found = _weights(model)
    np.testing.assert_allclose(_ranges(found["W1"], 1), _ranges(found["W2"], 0), rtol=1e-2)


def test_channels_that_are_joined_keep_scales_of_their_own():
    draw = np.random.default_rng(2)
    model = _model(
        "n (float[N, 3, 8, 8] x) => (float[N, 4, H, K] y) { a = Conv(x, W1) b = Conv(x, V) c = Concat<axis = 1>(a, b) "
        "r = Relu(c) y = Conv(r, W2) }",
        {"W1": _uneven(draw, 5, 3, 1, 1), "V": _uneven(draw, 3, 3, 1, 1), "W2": draw.normal(size=(4, 8, 1, 1))},
    )
    x = draw.normal(size=(2, 3, 8, 8)).astype(np.float32)
    before = _run(model, x)
    assert equalize(model) == 2
    assert float((_run(model, x) - before).abs().max() / before.abs().max()) < 1e-5
    found = _weights(model)
    written = np.concatenate([_ranges(found["W1"], 0), _ranges(found["V"], 0)])
    np.testing.assert_allclose(written, _ranges(found["W2"], 1), rtol=1e-2)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("c = Conv(x, W1) r = Clip(c, low, high) y = Conv(r, W2)", ""),
        ("c = Conv(x, W1) r = Relu(c) y = Conv(r, W2)", ", float[N, 8, H, K] r"),
        (
            "c = Conv(x, W1) r = Relu(c) i = If (flag) < then_branch = t () => (float[a, b, H, K] p) { p = Neg(r) }, "
            "else_branch = e () => (float[a, b, H, K] q) { q = Abs(r) } > j = Conv(i, W2) k = Conv(r, U) y = Add(j, k)",
            "",
        ),
    ],
    ids=["one bound for all channels", "a graph output", "a body reads it"],
)
def test_what_others_see_keeps_its_scale(body, outputs):
    draw = np.random.default_rng(0)
    weights = {"W1": _uneven(draw, 8, 3, 3, 3), "W2": draw.normal(size=(4, 8, 1, 1)), "U": np.ones((4, 8, 1, 1))}
    weights |= {"low": np.array(0.0), "high": np.array(6.0)}
    flag = ", bool flag" if "flag" in body else ""
    model = _model(
        f"n (float[N, 3, 8, 8] x{flag}) => (float[N, 4, H, K] y{outputs}) {{ {body} }}",
        {name: value for name, value in weights.items() if name in body},
    )
    before = _weights(model)
    assert equalize(model) == 0
    for name, value in _weights(model).items():
        np.testing.assert_array_equal(value, before[name])
