"""Linear layers of fixed sizes are written as Gemm over rows: the same function, no Reshape that another one undoes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from node_kinds import kinds

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.verification.record.answers import Question, Status

DRAW = np.random.default_rng(5)
NUMBERS = {
    **{name: DRAW.normal(size=(4, 4)).astype(np.float32) for name in ("W", "V", "U")},
    **{name: DRAW.normal(size=4).astype(np.float32) for name in ("b", "c", "d")},
    "wide": DRAW.normal(size=(1, 3, 4)).astype(np.float32),
    "heads": np.array([2, 3, -1, 2]),
    "zeros": np.array([0, 0, 2, 2]),
    "flat": np.array([6, 4]),
    "back": np.array([2, 3, 4]),
}


def model(text: str, imports: str = '"" : 20') -> ir.Model:
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> {text}")
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    for name, array in NUMBERS.items():
        if name in words:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def same(source: ir.Model, result: ir.Model) -> None:
    """Both compute the same, in float64, of numbers that fit the declared sizes."""
    draw = np.random.default_rng(6)
    feeds: dict[str, np.ndarray] = {}
    for value in source.graph.inputs:
        shape = [size if isinstance(size, int) else 5 for size in value.shape or ()]
        feeds[str(value.name)] = draw.normal(size=shape) if shape else np.array(True)
    old, new = (Evaluator(item).run(feeds) for item in (source, result))
    assert list(old) == list(new)
    for name, array in old.items():
        np.testing.assert_allclose(new[name].numpy(), array.numpy(), rtol=1e-12, atol=1e-12)


CASES = {
    "the bias in front": (
        """n (float[6,4] x) => (float[6,4] y) {
            r = Reshape (x, back) a = MatMul (r, W) e = Add (b, a) y = Reshape (e, flat)
        }""",
        "Gemm Reshape",
    ),
    "layers in a row": (
        """n (float[6,4] x) => (float[2,3,4] e, float[6,4] y) {
            r = Reshape (x, back) a = MatMul (r, W) e = Add (a, b)
            f = MatMul (e, V) g = Add (f, c) y = Reshape (g, flat)
        }""",
        "Gemm Reshape Gemm Reshape",
    ),
    "two that read one value": (
        """n (float[2,3,4] x) => (float[2,3,2,2] y, float[2,3,2,2] z) {
            a = MatMul (x, W) e = Add (a, b) f = MatMul (x, V) g = Add (f, c)
            y = Reshape (e, heads) z = Reshape (g, heads)
        }""",
        "Reshape Gemm Gemm Reshape Reshape",
    ),
    "views around it": (
        """n (float[6,4] x) => (float[2,2,3,2] y) {
            r = Reshape (x, back) a = MatMul (r, W) e = Add (a, b) h = Reshape (e, heads)
            y = Transpose <perm = [0, 2, 1, 3]> (h)
        }""",
        "Gemm Reshape Transpose",
    ),
    "a sum that others read, too": (
        """n (float[6,4] x) => (float[2,3,4] e, float[6,4] y, float[2,3,4] z) {
            r = Reshape (x, back) a = MatMul (r, W) e = Add (a, b) y = Reshape (e, flat) z = Tanh (e)
        }""",
        "Gemm Reshape Reshape Tanh",
    ),
    "a sum that a body reads": (
        """n (float[6,4] x, bool q) => (float[2,3,2,2] y) {
            s = Reshape (x, back) a = MatMul (s, W) e = Add (a, b)
            y = If (q) <
                then_branch = then () => (float[2,3,2,2] p) { o = Sigmoid (e) p = Reshape (o, heads) },
                else_branch = other () => (float[2,3,2,2] r) { t = MatMul (e, V) u = Add (t, c) r = Reshape (u, heads) }
            >
        }""",
        "Gemm Reshape If",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_of_known_sizes_are_gemms(case):
    text, expected = CASES[case]
    source = model(text)
    result = rewrite(source).model
    assert kinds(result) == expected.split()
    assert "MatMul" not in [node.op_type for node in ir.traversal.RecursiveGraphIterator(result.graph)]
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    same(source, result)


@pytest.mark.parametrize(
    "text",
    [
        "n (float[batch,3,4] x) => (float[batch,3,4] y) { a = MatMul (x, W) y = Add (a, b) }",  # a size is not known
        "n (float[0,3,4] x) => (float[0,3,4] y) { a = MatMul (x, W) y = Add (a, b) }",  # no rows
        "n (float[3,4] x) => (float[3,4] y) { a = MatMul (x, W) y = Add (a, b) }",  # rows as they are
        "n (float[2,3,4] x) => (float[2,3,4] y) { a = MatMul (x, W) y = Add (a, wide) }",  # no bias of a Gemm
        "n (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] a) { a = MatMul (x, W) y = Add (a, b) }",  # read as it is
        # alone a layer would be three operators
        "n (float[2,3,4] x) => (float[2,3,4] y) { a = MatMul (x, W) y = Add (a, b) }",
        "n (float[2,3,4] x) => (float[2,3,4] y) { z = Tanh (x) a = MatMul (z, W) e = Add (a, b) y = Tanh (e) }",
        """n (float[2,3,4] x) => (float[2,3,4] e, float[2,3,4] y) {
            a = MatMul (x, W) e = Add (a, b) f = MatMul (e, V) y = Add (f, c)
        }""",
        "n (float[2,3,4] x) => (float[2,3,2,2] y) { a = MatMul (x, W) e = Add (a, b) y = Reshape (e, zeros) }",
    ],
)
def test_others_stay(text):
    source = model(text)
    result = rewrite(source).model
    assert kinds(result) == kinds(source)
    same(source, result)


def test_an_operator_that_reads_nothing_is_no_layer():
    text = "n (float[2,3,4] x) => (float[2,3,4] y) { r = RandomNormal <shape = [2, 3, 4]> () y = Add (x, r) }"
    assert kinds(rewrite(model(text)).model) == ["RandomNormal", "Add"]


def test_rewriting_again_changes_nothing():
    text = CASES["two that read one value"][0]
    once = rewrite(model(text)).model
    assert kinds(rewrite(once).model) == kinds(once)


def test_attention_of_fixed_sizes_is_proven_for_every_input(tmp_path):
    """Rows that three products share, one of them scaled by the rewriting, with views behind each."""
    text = """n (float[2,3,4] x) => (float[2,3,4] y) {
        qa = MatMul (x, W) qb = Add (qa, b) qc = Reshape (qb, heads) q = Transpose <perm = [0, 2, 1, 3]> (qc)
        half = Constant <value_float = 0.5> () s = Mul (q, half)
        ka = MatMul (x, V) kb = Add (ka, c) kc = Reshape (kb, heads) k = Transpose <perm = [0, 2, 3, 1]> (kc)
        va = MatMul (x, U) vb = Add (va, d) vc = Reshape (vb, heads) v = Transpose <perm = [0, 2, 1, 3]> (vc)
        p = MatMul (s, k) o = Softmax (p) z = MatMul (o, v) m = Transpose <perm = [0, 2, 1, 3]> (z)
        n = Reshape (m, back) oa = MatMul (n, W) ob = Add (oa, b) g = Gelu (ob)
        ga = MatMul (g, V) y = Add (ga, c)
    }"""
    source = tmp_path / "source.onnx"
    onnx.save(ir.to_proto(model(text)), source)
    found = nd.fold(source, tmp_path / "target.onnx")
    operators = kinds(ir.load(tmp_path / "target.onnx"))
    assert (operators.count("Gemm"), operators.count("Mul"), operators.count("Reshape")) == (5, 0, 6)
    assert found.verdict is not None
    (proof,) = (check for check in found.verdict.checks if check.name == Question.DERIVATION)
    assert (found.verdict.status, proof.status) == (Status.PASS, Status.PASS), proof.detail
