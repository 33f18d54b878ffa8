"""An ONNX reference is the user's file as it is: run by onnxruntime, evaluated with its own operator set's meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import parser

from normdeploy.api import fold
from normdeploy.errors import GraphError, VerificationError
from normdeploy.graph.operators import OPERATORS
from normdeploy.verification import verify
from normdeploy.verification.sides.graph_reference import GraphReference

BODIES = {
    "Hardmax": (12, "c = Hardmax <axis = 1> (r)", "c = Hardmax <axis = 1> (r)"),
    "Softmax": (12, "c = Softmax <axis = 1> (r)", "c = Softmax <axis = 1> (r)"),
    "a dropped mask": (11, "d, m = Dropout (r)\n c = Cast <to = 1> (m)", "d, m = Dropout (r)\n c = Cast <to = 1> (m)"),
}


def graph(version: int, body: str) -> onnx.ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {version}]>
        net (float[n,3,4,5] x) => (float[n,6,4,5] y)
        <float[6,3,1,1] w = {{{", ".join(str(0.1 * k - 0.7) for k in range(18))}}},
         float[6] g = {{1, 2, 3, 4, 5, 6}}, float[6] b = {{0.1, 0, 0, 0, 0, 0.2}}>
        {{ r = Relu(x)\n {body}\n s = Add(r, c)\n k = Conv(s, w)\n y = BatchNormalization(k, g, b, b, g) }}"""
    )
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("name", BODIES)
def test_what_is_folded_computes_what_the_users_file_computes(name: str, tmp_path: Path):
    version, body, _ = BODIES[name]
    onnx.save(graph(version, body), tmp_path / "old.onnx")
    result = fold(tmp_path / "old.onnx", tmp_path / "new.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    options = {"providers": ["CPUExecutionProvider"]}
    (old,) = ort.InferenceSession(tmp_path / "old.onnx", **options).run(None, {"x": x})
    (new,) = ort.InferenceSession(tmp_path / "new.onnx", **options).run(None, {"x": x})
    np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BODIES)
def test_the_same_words_at_a_newer_operator_set_are_another_function(name: str, tmp_path: Path):
    version, body, newer = BODIES[name]
    onnx.save(graph(version, body), tmp_path / "old.onnx")
    onnx.save(graph(13, newer), tmp_path / "claimed.onnx")
    assert verify(tmp_path / "old.onnx", tmp_path / "claimed.onnx", level="quick").status == "fail"


def test_a_reference_that_is_misread_here_is_no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An operator whose float64 meaning is wrong on both sides alike must not end in a pass."""
    onnx.save(graph(13, "c = Hardmax <axis = 1> (r)"), tmp_path / "file.onnx")
    monkeypatch.setitem(OPERATORS, ("", "Hardmax"), lambda _, inputs: torch.ones_like(inputs[0]))
    verdict = verify(tmp_path / "file.onnx", tmp_path / "file.onnx", level="quick")
    assert verdict.status == "error"
    assert "differs from what onnxruntime computes of the file" in " ".join(verdict.reasons)
    with pytest.raises(VerificationError, match="differs from what onnxruntime computes"):
        fold(tmp_path / "file.onnx", tmp_path / "out.onnx", verify="quick")


def test_a_reference_whose_own_rounding_is_large_is_still_one(tmp_path: Path):
    """1e7 is added and taken off: nothing of float32 is left, and that is rounding."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[n,6] x) => (float[n,6] y) <float far = {10000000.0}>
        { a = Add(x, far)\n b = Sub(a, far)\n y = Relu(b) }"""
    )
    onnx.save(model, tmp_path / "file.onnx")
    assert verify(tmp_path / "file.onnx", tmp_path / "file.onnx", level="quick").status != "error"


def test_ties_are_not_taken_for_another_meaning(tmp_path: Path):
    """Rows of equal scores: which one is the largest hangs on the rounding of each."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[n,40] x) => (int64[n] y) <float[1] third = {0.333333}>
        { a = Softmax(x)\n b = ReduceSum <keepdims = 1> (a)\n c = Div(a, b)\n d = Mul(c, third)\n
          e = Sub(d, d)\n y = ArgMax <axis = -1, keepdims = 0> (e) }"""
    )
    onnx.save(model, tmp_path / "file.onnx")
    same = np.ones((3, 40), np.float32)
    verdict = verify(tmp_path / "file.onnx", tmp_path / "file.onnx", args={"x": same}, level="quick")
    assert verdict.status != "error"


NARROW = """<ir_version: 10, opset_import: ["" : 20]>
    net ({outer}[n,6] x) => ({outer}[n,6] y) <float[6,6] w = {{{weights}}}>
    {{ a = Cast <to = {kind}> (x)\n f = Cast <to = 1> (a)\n b = MatMul(f, w)\n c = HardSigmoid(b)
       d = Cast <to = {kind}> (c)\n y = Cast <to = {back}> (d) }}"""


def narrow(folder: Path, kind: int, outer: str) -> Path:
    weights = ", ".join(f"{number:.4f}" for number in np.random.default_rng(0).standard_normal(36))
    back = {"float": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}[outer]
    onnx.save(
        parser.parse_model(NARROW.format(outer=outer, weights=weights, kind=kind, back=back)), folder / "file.onnx"
    )
    return folder / "file.onnx"


NARROW_KINDS = [
    (onnx.TensorProto.BFLOAT16, "float"),
    (onnx.TensorProto.FLOAT16, "float"),
    (onnx.TensorProto.FLOAT16, "float16"),
]


@pytest.mark.parametrize(("kind", "outer"), NARROW_KINDS)
def test_a_reference_that_computes_in_a_narrow_type_is_no_misread_one(kind: int, outer: str, tmp_path: Path):
    path = narrow(tmp_path, kind, outer)
    assert verify(path, path, level="quick").status == "pass"


@pytest.mark.parametrize(("kind", "outer"), NARROW_KINDS)
def test_nor_hides_a_narrow_type_that_an_operator_is_misread(
    kind: int, outer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = narrow(tmp_path, kind, outer)
    monkeypatch.setitem(OPERATORS, ("", "HardSigmoid"), lambda _, inputs: torch.ones_like(inputs[0]))
    verdict = verify(path, path, level="quick")
    assert verdict.status == "error"
    assert "differs from what onnxruntime computes of the file" in " ".join(verdict.reasons)


CLOSE = """<ir_version: 10, opset_import: ["" : 20]>
    net (float[n,2] x) => (float[2] y) <float[2] held = {1.0, 2.0}, float[2] a = {0.5, 0.5}, int64[1] two = {2}> {
      zero = Constant <value_float = 0.0> ()
      still = Mul(x, zero)
      none = ReduceSum <keepdims = 0> (still)
      near = Constant <value_floats = [0.5, 0.5000001]> ()
      scores = Sum(a, near, none)
      best, order = TopK(scores, two)
      y = Gather(held, order)
    }"""


def test_an_order_of_all_but_equal_scores_is_no_other_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A runtime that rounds their sum otherwise turns it, however little the inputs matter."""
    onnx.save(parser.parse_model(CLOSE), tmp_path / "file.onnx")
    reference = GraphReference(tmp_path / "file.onnx", tmp_path)
    feeds = {"x": np.ones((3, 2), np.float32)}
    assert reference.truth(feeds)[0].tolist() == [2.0, 1.0]
    monkeypatch.setattr(reference, "native", lambda _: [np.float32([1.0, 2.0])])
    assert reference.truth(feeds)[0].tolist() == [2.0, 1.0]
    monkeypatch.setattr(reference, "native", lambda _: [np.float32([2.0, 9000.0])])
    with pytest.raises(GraphError, match="an operator of it means something else here"):
        reference.truth(feeds)


@pytest.mark.parametrize("size", [1e-4, 2e-6, 1e-8])
@pytest.mark.parametrize("kind", ["Elu", "Celu", "Selu"])
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_kernel_subtracts_from_one_is_no_other_meaning(
    inside: bool, kind: str, size: float, tmp_path: Path
) -> None:
    """onnxruntime takes exp(x) - 1, which is off by a unit of 1, and all of it where x is small."""
    body = f"h = {kind} (x)"
    if inside:
        body = f"h = If (k) <then_branch = a () => (float[n, 4] t) {{ t = {kind} (x) }},\n"
        body += "else_branch = e () => (float[n, 4] u) { u = Neg (x) }>"
    text = f"""<ir_version: 8, opset_import: ["" : 18]> net (float[n, 4] x) => (float[n, 4] y)
        <float[4] g = {{1, 2, 3, 1}}, bool k = {{1}}> {{ {body} y = Mul (h, g) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    x = (size * np.random.default_rng(0).standard_normal((3, 4))).astype(np.float32)
    (y,) = GraphReference(tmp_path / "net.onnx", tmp_path).truth({"x": x})
    alpha, scale = (1.67326324, 1.05070102) if kind == "Selu" else (1.0, 1.0)
    exact = x.astype(np.float64)
    expected = scale * np.where(exact > 0, exact, alpha * np.expm1(exact)) * np.array([1, 2, 3, 1])
    np.testing.assert_allclose(y, expected, rtol=1e-6)
