"""Pointwise operators between layers of fixed sizes work on rows where that leaves fewer Reshapes; all else stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from node_kinds import kinds
from onnx.reference import ReferenceEvaluator

import normdeploy as nd
from normdeploy.rewrite import rewrite
from normdeploy.verification.record.answers import Question, Status

DRAW = np.random.default_rng(8)
NUMBERS = {
    **{name: DRAW.normal(size=(4, 4)).astype(np.float32) for name in ("W", "V", "U")},
    **{name: DRAW.normal(size=4).astype(np.float32) for name in ("b", "c", "d", "row")},
    "deep_row": DRAW.normal(size=(1, 1, 4)).astype(np.float32),
    "deep_number": DRAW.normal(size=(1, 1, 1, 1))[0].astype(np.float32),
    "column": DRAW.normal(size=(2, 3, 1)).astype(np.float32),
    "half": np.float32(0.5),
    "one": np.float32(1),
    "low": np.float32(-0.3),
    "root": np.float32(2**-0.5),
    "heads": np.array([2, 3, -1, 2]),
    "flat": np.array([6, 4]),
    "back": np.array([2, 3, 4]),
}
FIRST = "p = MatMul (x, W) e = Add (p, b)"
LAST = "q = MatMul (g, V) y = Add (q, c)"


def model(body: str, results: str = "float[2,3,4] y", given: str = "float[2,3,4] x") -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> n ({given}) => ({results}) {{ {body} }}'
    )
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    for name, array in NUMBERS.items():
        if name in words:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def rewritten(proto: onnx.ModelProto) -> onnx.ModelProto:
    result = ir.to_proto(rewrite(ir.from_proto(proto)).model)
    onnx.checker.check_model(result, full_check=True)
    return result


def same(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Both compute the same, by onnx's reference implementation."""
    draw = np.random.default_rng(9)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in one.graph.input}
    feeds = {name: draw.normal(size=shape).astype(np.float32) for name, shape in sizes.items()}
    for a, b in zip(*(ReferenceEvaluator(proto).run(None, feeds) for proto in (one, other)), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)


FLAT = ("Reshape Gemm", "Gemm Reshape")
CASES = {
    "one": ("g = Gelu (e)", "Gelu"),
    "several that read one another": (
        "s = Mul (e, root) t = Erf (s) u = Add (t, one) g = Mul (e, u)",
        "Mul Erf Add Mul",
    ),
    "a gate": ("s = Sigmoid (e) g = Mul (e, s)", "Sigmoid Mul"),
    "a choice": ("s = Greater (e, low) t = Tanh (e) g = Where (s, e, t)", "Greater Tanh Where"),
    "a number for each place of a row": ("s = Sigmoid (e) t = Add (s, row) g = Tanh (t)", "Sigmoid Add Tanh"),
    "numbers with more axes": (
        "s = Sigmoid (e) t = Add (deep_row, s) u = Tanh (t) v = Sub (u, deep_number) g = Tanh (v)",
        "Sigmoid Add Tanh Sub Tanh",
    ),
    "bounds": ("g = Clip (e, low, one)", "Clip"),
}


@pytest.mark.parametrize("case", CASES)
def test_between_two_layers(case):
    body, operators = CASES[case]
    source = model(f"{FIRST} {body} {LAST}")
    result = rewritten(source)
    assert kinds(result) == f"{FLAT[0]} {operators} {FLAT[1]}".split()
    same(source, result)


@pytest.mark.parametrize(
    ("body", "results", "operators"),
    [
        # the values around them are rows already, in another exporter's way: Gemm with views
        (
            "r = Reshape (x, flat) h = Gemm (r, W, b) e = Reshape (h, back) g = Gelu (e) k = Reshape (g, flat) "
            "y = Gemm (k, V, c)",
            "float[6,4] y",
            "Reshape Gemm Gelu Gemm",
        ),
        # a view behind them is one with theirs
        (f"{FIRST} g = Gelu (e) y = Reshape (g, heads)", "float[2,3,2,2] y", "Reshape Gemm Gelu Reshape"),
        # what one of them computes is read as it is, too: one Reshape less
        (f"{FIRST} g = Gelu (e) {LAST} z = Softmax (g)", "float[2,3,4] y, float[2,3,4] z", None),
        (f"{FIRST} g = Gelu (e) {LAST}", "float[2,3,4] y, float[2,3,4] g", None),
    ],
)
def test_what_else_is_joined(body, results, operators):
    source = model(body, results)
    result = rewritten(source)
    assert kinds(result).count("Reshape") <= 3
    if operators is None:
        gelu = next(node for node in result.graph.node if node.op_type == "Gelu")
        assert next(n for n in result.graph.node if gelu.input[0] in n.output).op_type == "Gemm"
    else:
        assert kinds(result) == operators.split()
    same(source, result)


@pytest.mark.parametrize(
    ("body", "results"),
    [
        # a number for each row is none of rows of another shape
        (f"{FIRST} g = Mul (e, column) {LAST}", "float[2,3,4] y"),
        # nothing is saved: another value of the whole shape comes in, and a norm reads the sum
        (f"s = Softmax (x) {FIRST} g = Add (e, s) y = Softmax (g)", "float[2,3,4] y"),
        # no layer at either end
        ("s = Tanh (x) g = Gelu (s) y = Softmax (g)", "float[2,3,4] y"),
    ],
)
def test_others_stay(body, results):
    source = model(body, results)
    result = rewritten(source)
    assert kinds(result) == kinds(source)
    same(source, result)


def test_of_a_body_they_are_too():
    body = f"then () => (float[2,3,4] o) {{ {FIRST} g = Gelu (e) q = MatMul (g, V) o = Add (q, c) }}"
    other = "other () => (float[2,3,4] r) { r = Tanh (x) }"
    source = model(f"y = If (z) <then_branch = {body}, else_branch = {other}>", given="float[2,3,4] x, bool z")
    result = rewrite(ir.from_proto(source)).model
    found = [node.op_type for node in ir.traversal.RecursiveGraphIterator(result.graph)]
    assert found.count("Reshape") == 2
    assert "MatMul" not in found


def test_a_layer_whose_rows_others_made_is_not_alone():
    """The view of rows is there, whoever else reads it: the layer's Reshape in front is no new one."""
    source = model(
        "r = Reshape (x, back) a = Softmax (r) p = MatMul (r, W) e = Add (p, b) y = Softmax (e)",
        "float[2,3,4] y, float[2,3,4] a",
        "float[6,4] x",
    )
    result = rewritten(source)
    assert sorted(kinds(result)) == ["Gemm", "Reshape", "Reshape", "Softmax", "Softmax"]
    same(source, result)


@pytest.mark.parametrize("order", [0, 1])
def test_a_layer_beside_one_that_asks_for_rows_shares_them(order):
    beside = ("o = MatMul (s, U) z = Add (o, d)", "p = MatMul (s, W) e = Add (p, b) g = Gelu (e)")
    source = model(f"s = Softmax (x) {' '.join(beside[:: 1 - 2 * order])} {LAST}", "float[2,3,4] y, float[2,3,4] z")
    result = rewritten(source)
    assert (kinds(result).count("Gemm"), kinds(result).count("Reshape")) == (3, 3)
    same(source, result)


def test_rewriting_again_changes_nothing():
    once = rewritten(model(f"{FIRST} {CASES['several that read one another'][0]} {LAST}"))
    assert kinds(rewritten(once)) == kinds(once)


@pytest.mark.parametrize("case", ["several that read one another", "a choice", "numbers with more axes", "bounds"])
def test_it_is_proven_for_every_input(case, tmp_path):
    source = tmp_path / "source.onnx"
    onnx.save(model(f"{FIRST} {CASES[case][0]} {LAST}"), source)
    found = nd.fold(source, tmp_path / "target.onnx")
    assert "MatMul" not in kinds(onnx.load(tmp_path / "target.onnx"))
    assert found.verdict is not None
    (proof,) = (check for check in found.verdict.checks if check.name == Question.DERIVATION)
    assert (found.verdict.status, proof.status) == (Status.PASS, Status.PASS), proof.detail


def test_a_map_that_passes_a_relu_over_rows_is_proven(tmp_path):
    """A scale behind the Relu goes into the first layer: the rows are scaled, in front of the Relu and behind it."""
    source = tmp_path / "source.onnx"
    proto = model(f"{FIRST} s = Relu (e) g = Mul (s, row) t = Tanh (g) q = MatMul (t, V) y = Add (q, c)")
    for tensor in proto.graph.initializer:
        if tensor.name == "row":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32([0.5, 2, 3, 4]), "row"))
    onnx.save(proto, source)
    found = nd.fold(source, tmp_path / "target.onnx")
    assert kinds(onnx.load(tmp_path / "target.onnx")) == ["Reshape", "Gemm", "Relu", "Tanh", "Gemm", "Reshape"]
    assert found.verdict is not None
    (proof,) = (check for check in found.verdict.checks if check.name == Question.DERIVATION)
    assert (found.verdict.status, proof.status) == (Status.PASS, Status.PASS), proof.detail
