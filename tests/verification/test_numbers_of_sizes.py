"""Numbers that a file computes from sizes: what agrees at the example's size alone is not confirmed."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from normdeploy.verification import verify

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) <int64 k = {{{}}}> {{
    s = Shape<start=0, end=1>(x) {} c = Cast<to=1>(q) m = Mul(x, c) y = Add(m, x) }}"""


def written(path: Path, divisor: int, q: str) -> Path:
    onnx.save(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(GRAPH.format(divisor, q))), path)
    return path


@pytest.mark.parametrize("divisor", [2, 3])
def test_a_size_is_no_multiple_of_a_number_for_every_input(divisor: int, tmp_path: Path) -> None:
    """k (n / k), in integers, is n wherever k divides n."""
    source = written(tmp_path / "source.onnx", divisor, "q = Identity(s)")
    same = verify(source, written(tmp_path / "same.onnx", divisor, "t = Add(s, k) q = Sub(t, k)"), level="quick")
    assert same.check("derivation").status == "pass", same.summary()
    rounded = written(tmp_path / "rounded.onnx", divisor, "t = Div(s, k) q = Mul(t, k)")
    verdict = verify(source, rounded, level="quick")
    assert verdict.status == "fail"
    assert verdict.check("derivation").status != "pass", verdict.summary()
