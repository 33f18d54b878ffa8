"""Numbers that a file computes from sizes: what agrees at the example's size alone is not confirmed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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


SIZES = """<ir_version: 8, opset_import: ["": 18]> g (float[n,m] x) => (float[n,m] y)
    <int64[1] first = {0}, int64[1] second = {1}, int64[1] one = {1}, int64[1] nought = {0}, int64[1] far = {512}> {
    s = Shape(x) n = Gather(s, first) m = Gather(s, second) """
"""Numbers of sizes that are of one formula at all sizes that are tried, and of another beyond."""

BEYOND = {
    "max(1, m - 512)": ("d = Sub(m, far) k = Max(one, d)", "k = Identity(one)"),
    "max(n, m - 512)": ("d = Sub(m, far) k = Max(n, d)", "k = Identity(n)"),
    "min(n, m, n + 512)": ("d = Add(n, far) k = Min(m, d, n)", "k = Min(m, n)"),
    "m / (n + 512)": ("d = Add(n, far) k = Div(m, d)", "k = Sub(n, n)"),
    "m % 512": ("k = Mod(m, far)", "k = Identity(m)"),
    "sign of m - 512": ("d = Sub(m, far) k = Sign(d)", "k = Neg(one)"),
    "size of m - 512": ("d = Sub(m, far) k = Abs(d)", "k = Sub(far, m)"),
    "8 bits": ("d = Cast<to=3>(m) k = Cast<to=7>(d)", "k = Identity(m)"),
    "float16": ("d = Cast<to=10>(m) k = Cast<to=7>(d)", "k = Identity(m)"),
}


def sized(path: Path, body: str) -> Path:
    onnx.save(onnx.parser.parse_model(f"{SIZES} {body} c = Cast<to=1>(k) y = Mul(x, c) }}"), path)
    return path


@pytest.mark.parametrize("what", BEYOND)
def test_a_decision_on_sizes_that_fell_one_way_is_not_confirmed(what: str, tmp_path: Path) -> None:
    """Whether the file has it or has lost it: no size shows what it does, and it is named."""
    paths = [sized(tmp_path / f"{place}.onnx", body) for place, body in enumerate(BEYOND[what])]
    example = {"x": np.arange(48.0, dtype=np.float32).reshape(3, 16)}
    for source, file in (paths, paths[::-1]):
        verdict = verify(source, file, args=example, level="quick")
        assert verdict.status == "not-exercised", verdict.summary()
        assert verdict.check("derivation").status != "pass", verdict.summary()
    same = verify(paths[0], paths[0], args=example, level="quick")
    assert same.status == "pass", same.summary()
    assert same.check("derivation").status == "pass", same.summary()


def test_a_size_is_above_what_is_at_most_nought_at_all_sizes(tmp_path: Path) -> None:
    """max(m, 0) and max(m, -1) are m, which needs no size to be tried."""
    source = sized(tmp_path / "source.onnx", "k = Identity(m)")
    for number, body in enumerate(("k = Max(m, nought)", "d = Neg(one) k = Max(m, d)", "k = Abs(m)")):
        verdict = verify(source, sized(tmp_path / f"{number}.onnx", body), level="quick")
        assert verdict.check("derivation").status == "pass", verdict.summary()
