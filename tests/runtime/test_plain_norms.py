"""Scale and shift of norms in the linear layers behind them: the same function, and left alone where others read."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from normdeploy.runtime import this_machine
from normdeploy.runtime.tuning.int8 import INT8_RECIPES, Quantizer
from normdeploy.runtime.tuning.plain_norms import move_affines

NORM = "n = LayerNormalization <axis = -1> (x, g, b)"
CASES = {
    "a product with a bias": f"{NORM} a = MatMul(n, W) y = Add(a, c)",
    "a bias in front": f"{NORM} a = MatMul(n, W) y = Add(c, a)",
    "two products": f"{NORM} a = MatMul(n, W) p = Add(a, c) d = MatMul(n, V) q = Add(d, e) y = Mul(p, q)",
    "a scale alone, no bias": "n = LayerNormalization <axis = -1> (x, g) y = MatMul(n, W)",
    "without a mean": "n = RMSNormalization <axis = -1> (x, g) y = MatMul(n, W)",
}
GEMMS = {
    "Gemm": f"{NORM} y = Gemm(n, W, c)",
    "a turned Gemm": f"{NORM} y = Gemm <transB = 1> (n, T, c)",
}
LEFT = {
    "a shift and no bias": f"{NORM} y = MatMul(n, W)",
    "another reader": f"{NORM} a = MatMul(n, W) p = Add(a, c) s = ReduceMean <keepdims = 1> (n) y = Add(p, s)",
    "a weight that two read": f"{NORM} a = MatMul(n, W) p = Add(a, c) m = MatMul(x, W) y = Add(p, m)",
    "a bias that two read": f"{NORM} a = MatMul(n, W) p = Add(a, c) y = Add(p, c)",
    "the right operand": f"{NORM} t = Transpose <perm = [0, 2, 1]> (n) y = MatMul(U, t)",
    "a scale per row": "n = LayerNormalization <axis = -2> (x, G) a = MatMul(n, W) y = Add(a, c)",
    "nothing to move": "n = LayerNormalization <axis = -1> (x, ones) y = MatMul(n, W)",
}


def _weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2)

    def of(*shape: int) -> np.ndarray:
        return draw.normal(size=shape).astype(np.float32)

    weights = {"g": of(6), "b": of(6), "W": of(6, 4), "c": of(4), "V": of(6, 4), "e": of(4), "T": of(4, 6)}
    return weights | {"U": of(5, 6), "G": of(5, 6), "ones": np.ones(6, np.float32)}


def _model(body: str, kind: str = "batch, 5") -> onnx.ModelProto:
    rank = len(kind.split(","))
    out = ", ".join(f"o{index}" for index in range(rank + 1))
    head = '<ir_version: 11, opset_import: ["" : 23]>'
    model = onnx.parser.parse_model(f"{head} f (float[{kind}, 6] x) => (float[{out}] y) {{ {body} }}")
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in _weights().items() if name in used
    )
    onnx.checker.check_model(model)
    return model


def _told(model: ir.Model) -> tuple[list[bytes], dict[str, bytes]]:
    proto = ir.to_proto(model).graph
    return [node.SerializeToString() for node in proto.node], {t.name: t.raw_data for t in proto.initializer}


@pytest.mark.parametrize("name", [*CASES, *GEMMS])
def test_the_function_stays_and_the_norm_is_plain(name):
    flat = name in GEMMS
    before = _model(GEMMS[name] if flat else CASES[name], "batch" if flat else "batch, 5")
    graph = ir.from_proto(before)
    assert move_affines(graph) == 1
    after = ir.to_proto(graph)
    onnx.checker.check_model(after, full_check=True)
    norm = after.graph.node[0]
    read = {name for node in after.graph.node for name in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= read
    assert len(norm.input) == 2
    scale = next(numpy_helper.to_array(t) for t in after.graph.initializer if t.name == norm.input[1])
    np.testing.assert_array_equal(scale, np.ones(6))
    x = np.random.default_rng(0).normal(size=(3, 6) if flat else (3, 5, 6)).astype(np.float32)
    for one, other in zip(
        ReferenceEvaluator(before).run(None, {"x": x}), ReferenceEvaluator(after).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LEFT)
def test_what_others_read_or_nothing_can_take_stays(name):
    model = ir.from_proto(_model(LEFT[name]))
    before = _told(model)
    assert move_affines(model) == 0
    assert _told(model) == before


def test_a_constant_that_a_caller_may_replace_stays():
    model = _model(CASES["a product with a bias"])
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == "g")
    model.graph.input.append(onnx.helper.make_tensor_value_info("g", scale.data_type, scale.dims))
    graph = ir.from_proto(model)
    before = _told(graph)
    assert move_affines(graph) == 0
    assert _told(graph) == before


def test_the_linear_recipe_quantizes_plain_norms(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(_model(CASES["two products"]), path)
    recipe = next(recipe for recipe in INT8_RECIPES if recipe.plain)
    rows = np.random.default_rng(0).normal(size=(64, 5, 6)).astype(np.float32)
    target = tmp_path / "q.onnx"
    assert Quantizer(path, [{"x": rows}], this_machine()).write(target, recipe) == 1
    (norm,) = [node for node in onnx.load(target).graph.node if node.op_type == "LayerNormalization"]
    assert len(norm.input) == 2
    before, after = ReferenceEvaluator(onnx.load(path)), ReferenceEvaluator(onnx.load(target))
    (truth,), (found,) = before.run(None, {"x": rows}), after.run(None, {"x": rows})
    assert 1e-4 < np.linalg.norm(found - truth) / np.linalg.norm(truth) < 0.05
