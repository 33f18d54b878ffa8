"""The forms of maps that nothing absorbs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'


def run(text, dtype="float"):
    """Rewrite, check the function, return the operators and the ledger."""
    model = ir.from_proto(parser.parse_model(HEADER + text))
    result = rewrite(model)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    shapes = {value.name: [dim if isinstance(dim, int) else 2 for dim in value.shape] for value in model.graph.inputs}
    feeds = {name: np.random.default_rng(0).normal(size=shape) for name, shape in shapes.items()}
    old, new = Evaluator(model).run(feeds), Evaluator(result.model).run(feeds)
    for name, value in old.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-6, atol=1e-6)
    return [node.op_type for node in result.model.graph], result


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # as written: no form needs fewer operators
        ("a = Mul(r, g)", ["Mul"]),
        ("a = Sub(r, g)", ["Sub"]),
        ("a = Div(r, g)", ["Div"]),
        # Mul and Add in one pass
        ("a0 = Mul(r, g) a = Add(a0, g)", ["BatchNormalization"]),
        # four operators of a spelled-out norm
        ("a0 = Sub(r, h) a1 = Div(a0, g) a2 = Mul(a1, h) a = Add(a2, g)", ["BatchNormalization"]),
        # only a scale, only a shift
        ("a0 = Mul(r, g) a1 = Div(a0, g) a2 = Mul(a1, g) a = Mul(a2, g)", ["Mul"]),
        ("a0 = Add(r, g) a1 = Sub(a0, h) a = Add(a1, g)", ["Add"]),
        # along another axis than 1: no BatchNormalization
        ("a0 = Mul(r, k) a = Add(a0, k)", ["Mul", "Add"]),
        # nothing at all
        ("a0 = Mul(r, g) a1 = Div(a0, g) a = Mul(a1, one)", []),
    ],
)
def test_forms(body, expected):
    ops, _ = run(f"""
agraph (float[N, 3, 2] x) => (float[N, 3, 2] y)
<float[3, 1] g = {{1, 2, 4}}, float[3, 1] h = {{0.5, -1.5, 0.75}}, float[2] k = {{2, 3}}, float[1] one = {{1}}>
{{ r = Relu(x) {body} y = Sigmoid(a) }}""")
    assert ops == ["Relu", *expected, "Sigmoid"]


@pytest.mark.parametrize(("tail", "expected"), [("2, 2, 2", ["BatchNormalization"]), ("2, 2, 2, 2", ["Mul", "Add"])])
def test_beyond_five_dimensions_no_batch_norm_is_written(tail, expected):
    """onnxruntime's CUDA provider refuses a BatchNormalization of six; RT-DETR's offsets have that many."""
    ops, _ = run(f"""
agraph (float[N, 3, {tail}] x) => (float[N, 3, {tail}] y)
<float two = {{2}}, float one = {{1}}>
{{ r = Relu(x) d = Mul(r, two) a = Sub(d, one) b = Mul(a, two) c = Add(b, one) y = Sigmoid(c) }}""")
    assert ops == ["Relu", *expected, "Sigmoid"]


def test_a_map_between_graph_input_and_output_that_changes_nothing():
    ops, result = run("""
agraph (float[N, 3] x) => (float[N, 3] y)
<float[3] g = {1, 1, 1}>
{ y = Mul(x, g) }""")
    assert ops == ["Identity"]
    assert [value.name for value in result.model.graph.inputs] == ["x"]
    assert result.ledger[0].action == "folded"
    assert result.ledger[0].reason == "it changes nothing"


def test_behind_a_matmul_and_a_transpose_no_batch_norm_is_written():
    """onnxruntime fuses MatMul with a BatchNormalization behind Reshape and Transpose without following the channel."""
    ops, result = run("""
agraph (float[N, 6, 4] x) => (float[N, 6, 6] y, float[N, 6, 6] z)
<float[4, 6] w = {1, 2, 3, 4, 5, 6, 1, 0, 2, 0, 3, 0, 0, 1, 0, 2, 0, 3, 2, 1, 2, 1, 2, 1},
 float[6] g = {1, 2, 3, 4, 5, 6}, float[6] b = {1, -1, 1, -1, 1, -1}, float[6] m = {0, 1, 0, 1, 0, 1},
 float[6] v = {1, 2, 3, 4, 5, 6}, float[6, 1] s = {1, 2, 1, 2, 1, 2}>
{
    p = MatMul(x, w)
    z = Relu(p)
    t = Transpose<perm = [0, 2, 1]>(p)
    n = BatchNormalization(t, g, b, m, v)
    n1 = Mul(n, s)
    y = Sigmoid(n1)
}""")
    assert "BatchNormalization" not in ops
    assert sorted(ops) == sorted(["MatMul", "Relu", "Transpose", "Mul", "Add", "Sigmoid"])
    # and onnxruntime agrees at every level
    proto = ir.to_proto(result.model)
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    expected = Evaluator(result.model).run({"x": x})["y"].numpy()
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(["y"], {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_composed_rows_name_the_map_that_stays():
    _, result = run("""
agraph (float[N, 3, 2] x) => (float[N, 3, 2] y)
<float[3, 1] s = {1, 2, 4}, float[3] g = {1, 2, 3}, float[3] b = {0.5, -1, 2}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1, 2, 3}>
{ r = Relu(x) n = BatchNormalization(r, g, b, m, v) a = Mul(n, s) y = Sigmoid(a) }""")
    assert [(row.kind, row.action, row.into) for row in result.ledger] == [
        ("BatchNormalization", "folded", "a"),
        ("affine map", "kept", ""),
    ]
    kept = result.ledger.kept[0]
    assert "Sigmoid" in kept.reason
    assert "the graph input 'x'" in kept.reason


def test_constants_nobody_reads_any_more_leave_the_file():
    _, result = run("""
agraph (float[N, 2, 4] x) => (float[N, 3, 4] y)
<float[3, 2, 1] w = {1, 2, 3, 4, 5, 6}, float[3] g = {1, 2, 3}, float[3] b = {0.5, -1, 2}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1, 2, 3}>
{ a = Conv(x, w)  y = BatchNormalization(a, g, b, m, v) }""")
    assert sorted(result.model.graph.initializers) == ["w", "w.bias"]
