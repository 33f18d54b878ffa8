"""Infinities in constants: masks of -inf, bounds of inf. No rounding makes one, and none may hide behind one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.verification import verify
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.gauges import alike
from normdeploy.verification.derivation.related.stored_rounding import compare
from normdeploy.verification.hints import unchanged

INF = float("inf")
HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[3,4] x, float[3,4] z) => (float[3,4] y) '

MASKED = {
    "scores": "a = Add(x, m) y = Softmax<axis = -1>(a)",
    "scaled scores": "c = Mul(x, k) a = Add(c, m) y = Softmax<axis = -1>(a)",
    "masked, then scaled": "a = Add(x, m) c = Mul(a, k) y = Softmax<axis = -1>(c)",
    "a sum of three": "a = Sum(x, z, m) y = Exp(a)",
    "a bound": "y = Min(x, m)",
    "a choice": "f = Greater(x, z) y = Where(f, x, m)",
    "shifted twice": "a = Add(x, m) b = Add(a, k) y = Exp(b)",
}


def model(text: str, mask: list[float]) -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEAD} {{ {text} }}")
    for name, value in (("m", np.array(mask, np.float32)), ("k", np.array([0.3, 0.7, 1.1, 0.9], np.float32))):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return ir.serde.deserialize_model(proto)


@pytest.mark.parametrize("text", MASKED)
@pytest.mark.parametrize("last", [-INF, INF, 0.0, -1e30, float("nan")])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_mask_is_the_sources_mask_or_it_is_not_confirmed(text: str, last: float):
    source, file = model(MASKED[text], [0, 0.5, 0, -INF]), model(MASKED[text], [0, 0.5, 0, last])
    report = check_derivation(source, file, unchanged(source), [{"x": (3, 4), "z": (3, 4)}])
    assert report.confirmed == (last == -INF)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, None])
@pytest.mark.parametrize(
    ("have", "want"),
    [(-INF, INF), (1.0, INF), (0.0, -INF), (65504.0, INF), (INF, 1.0), (float("nan"), INF), (INF, float("nan"))],
)
@pytest.mark.parametrize("slack", [0.0, INF])
def test_no_rounding_makes_an_infinity(dtype, have, want, slack):
    both = [np.array([number, 1.0]) for number in (have, want)]
    assert compare(both[0], dtype, both[1], slack=np.array([slack, 0.0])) is not None
    assert compare(both[1], dtype, both[1], slack=np.array([slack, 0.0])) is None


@pytest.mark.parametrize("other", [0.0, 3.0, -INF])
def test_gauges_with_an_infinity_are_alike_only_if_both_have_it(other):
    assert alike(np.array([1.0, INF]), np.array([1.0, INF]))
    assert not alike(np.array([1.0, other]), np.array([1.0, INF]))
    assert not alike(np.array([1.0, INF]), np.array([1.0, other]))


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("damaged", [False, True])
def test_the_least_number_may_stand_for_minus_infinity(size: int, damaged: bool, tmp_path: Path):
    """As torch's exporter writes a causal mask: where no row is masked whole, samples show one function."""
    mask = np.where(np.tril(np.ones((size, size))), 0, -INF).astype(np.float32)
    least = np.maximum(mask, np.finfo(np.float32).min)
    if damaged:
        least[0, 1] = 0
    for name, numbers in (("source", mask), ("file", least)):
        proto = onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 20]> g (float[n,{size},4] q) => (float[n,{size},4] y) {{
            k = Transpose<perm = [0, 2, 1]>(q) s = MatMul(q, k) a = Add(s, m)
            p = Softmax<axis = -1>(a) y = MatMul(p, q) }}"""
        )
        proto.graph.initializer.append(numpy_helper.from_array(numbers, "m"))
        onnx.save(proto, tmp_path / f"{name}.onnx")
    verdict = verify(tmp_path / "source.onnx", tmp_path / "file.onnx", level="quick")
    assert verdict.status == ("fail" if damaged else "pass"), verdict.summary()
