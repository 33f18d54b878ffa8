"""Linear layers of any rank written as Gemm with their bias: the same function, whatever stands around them."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_kinds import kinds
from onnx.reference import ReferenceEvaluator

from normdeploy.ort.settings import Settings
from normdeploy.rewrite.lower.gemm_over_rows import join_biases
from normdeploy.runtime import this_machine
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.tuning.int8 import INT8_RECIPES, Quantizer

JOINED = next(recipe for recipe in INT8_RECIPES if recipe.joined)
PLAIN = next(recipe for recipe in INT8_RECIPES if recipe.same_operators(JOINED) and not recipe.joined)


def _weights(*sizes: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    weights = {}
    for index, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        weights[f"W{index}"] = (draw.normal(size=(inner, outer)) / np.sqrt(inner)).astype(np.float32)
        weights[f"b{index}"] = draw.normal(size=outer).astype(np.float32)
    return weights


def _joined(path) -> tuple[onnx.ModelProto, int]:
    graph = ir.load(path)
    count = join_biases(graph)
    model = onnx.shape_inference.infer_shapes(ir.to_proto(graph), strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model, count


def _same(path, model: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> None:
    before, after = ReferenceEvaluator(onnx.load(path)), ReferenceEvaluator(model)
    for given_feeds in feeds:
        for one, other in zip(before.run(None, given_feeds), after.run(None, given_feeds), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


MLP = """n (float[{dims}, 4] x) => (float[{dims}, 3] y) {{
    a = MatMul(x, W0) c = Add(a, b0) r = Relu(c)
    d = MatMul(r, W1) y = Add(b1, d)
}}"""


@settings(max_examples=20, deadline=None)
@given(lead=st.lists(st.sampled_from(["batch", "time", "2", "3"]), min_size=1, max_size=3, unique=True))
def test_layers_in_a_row_pass_rows_on(lead, tmp_path_factory):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]>' + MLP.format(dims=", ".join(lead))
    )  # fmt: skip
    for name, value in _weights(4, 6, 3).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    onnx.save(model, path)
    found, count = _joined(path)
    assert count == 2
    there = kinds(found)
    assert (there.count("Gemm"), there.count("MatMul"), there.count("Add")) == (2, 0, 0)
    assert there.count("Reshape") == (0 if len(lead) == 1 else 2)
    read = {name for node in found.graph.node for name in node.input}
    assert {tensor.name for tensor in found.graph.initializer} <= read
    assert there.count("Shape") == int(len({"batch", "time"} & set(lead)) == 2)
    sizes = {"batch": 5, "time": 7, "2": 2, "3": 3}
    draw = np.random.default_rng(0)
    _same(path, found, {"x": draw.normal(size=(*(sizes[word] for word in lead), 4)).astype(np.float32)})


def test_results_that_others_read_keep_their_shape(write_model):
    path = write_model(
        """n (float[batch, 5, 4] x) => (float[batch, 5, 6] c, float[batch, 5, 3] y, float[batch, 5, 6] z) {
            a = MatMul(x, W0) c = Add(a, b0) r = Relu(c)
            d = MatMul(r, W1) e = Add(d, b1) r2 = Relu(e) y = Softmax(r2)
            z = Neg(r)
        }""",
        _weights(4, 6, 3),
    )
    found, count = _joined(path)
    assert count == 2
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    _same(path, found, {"x": x}, {"x": x[:1]})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = MatMul(x, W0) y = Add(a, a)", "no bias"),
        ("a = MatMul(x, W0) y = Add(a, rows)", "a bias per row"),
        ("a = MatMul(x, W0) n = Neg(a) c = Add(a, b0) y = Add(c, n)", "another reads the product"),
        ("a = MatMul(x, cube) y = Add(a, b0)", "a matrix per batch"),
        ("t = Neg(W0) a = MatMul(x, t) y = Add(a, b0)", "no constant matrix"),
    ],
)
def test_what_is_no_linear_layer_stays(write_model, body, why):
    weights = _weights(4, 6)
    weights |= {"rows": np.ones((5, 1), np.float32), "cube": np.ones((1, 4, 6), np.float32)}
    used = {name: value for name, value in weights.items() if name in body}
    path = write_model(f"n (float[batch, 5, 4] x) => (float[batch, 5, 6] y) {{ {body} }}", used)
    before = ir.to_proto(ir.load(path))
    model, count = _joined(path)
    assert count == 0, why
    assert [node.SerializeToString() for node in model.graph.node] == [
        node.SerializeToString() for node in before.graph.node
    ]


def test_a_value_that_a_body_captures_is_not_taken_away(write_model):
    path = write_model(
        """n (float[batch, 5, 4] x, bool flag) => (float[batch, 5, 6] y) {
            a = MatMul(x, W0) c = Add(a, b0) r = Relu(c)
            s = If (flag) <
                then_branch = then () => (float[b, 5, 6] p) { p = Neg(c) },
                else_branch = other () => (float[b, 5, 6] q) { q = Abs(r) }
            >
            y = Add(s, r)
        }""",
        _weights(4, 6),
    )
    found, count = _joined(path)
    assert count == 1
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    _same(path, found, {"x": x, "flag": np.array(True)}, {"x": x, "flag": np.array(False)})


def test_the_int8_variant_has_no_pass_for_the_bias(write_model, tmp_path):
    path = write_model(MLP.format(dims="batch, 5"), _weights(4, 6, 3))
    rows = np.random.default_rng(0).normal(size=(64, 5, 4)).astype(np.float32)
    quantizer = Quantizer(path, [{"x": rows}], this_machine())
    assert quantizer.operators(JOINED) == quantizer.operators(PLAIN)
    truth = open_backend(path, Settings(threads=1)).run({"x": rows})[0]
    for recipe in (PLAIN, JOINED):
        target = tmp_path / "q.onnx"
        assert quantizer.write(target, recipe) == (2 if recipe.joined else 0)
        assert kinds(onnx.load(target)).count("Add") == (0 if recipe.joined else 2)
        found = open_backend(target, Settings(threads=1)).run({"x": rows})[0]
        assert 1e-4 < np.linalg.norm(found - truth) / np.linalg.norm(truth) < 0.05
    kept = quantizer.operators(JOINED)[0]
    quantizer.write(target, JOINED, keep=[kept])
    floats = [tensor.name for tensor in onnx.load(target).graph.initializer if tensor.data_type == 1 and tensor.dims]
    assert [name for name in floats if name in ("W0", "W1")] == ["W0"]
