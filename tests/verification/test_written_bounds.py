"""A Clip where the other graph has a Max and a Min: one function, of bounds that no sample reaches as well."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from normdeploy.verification import verify

HEAD = """<ir_version: 8, opset_import: ["": %d]> g (float[n,4] x) => (float[n,3] y)
    <float[4,3] w = {0.5, -0.2, 0.1, 0.3, 0.7, -0.4, 0.2, -0.6, 0.9, -0.1, 0.8, 0.4}, float low = {-100000},
    float high = {%s}> { %s s = Sigmoid(c) y = MatMul(s, w) }"""
MAX_MIN = "a = Max(x, low) c = Min(a, high)"
CASES = {
    "both": (18, MAX_MIN, "c = Clip(x, low, high)"),
    "the other way round": (18, "c = Clip(x, low, high)", MAX_MIN),
    "from below": (18, "c = Max(x, low)", "c = Clip(x, low)"),
    "from above": (18, "c = Min(high, x)", "c = Clip(x, , high)"),
    "attributes": (10, MAX_MIN, "c = Clip<min = -100000.0, max = 90000.0>(x)"),
}


def written(path: Path, opset: int, body: str, high: float) -> Path:
    onnx.save(onnx.parser.parse_model(HEAD % (opset, high, body)), path)
    return path


@pytest.mark.parametrize("name", CASES)
def test_it_is_confirmed_for_every_input(name: str, tmp_path: Path) -> None:
    opset, source, file = CASES[name]
    paths = [written(tmp_path / f"{i}.onnx", opset, body, 90000) for i, body in enumerate((source, file))]
    verdict = verify(paths[0], paths[1], level="quick")
    assert verdict.check("derivation").status == "pass", verdict.summary()
    assert verdict.status == "pass", verdict.summary()


@pytest.mark.parametrize("name", ["both", "the other way round", "from above"])
def test_another_bound_is_not(name: str, tmp_path: Path) -> None:
    opset, source, file = CASES[name]
    paths = [
        written(tmp_path / f"{i}.onnx", opset, body, high)
        for i, (body, high) in enumerate(((source, 90000), (file, 80000)))
    ]
    verdict = verify(paths[0], paths[1], level="quick")
    assert verdict.status in ("fail", "not-exercised"), verdict.summary()


def test_bounds_in_the_other_order_are_another_function(tmp_path: Path) -> None:
    """Where the lower bound is the higher one, max(min(x, high), low) is low, and a Clip is high."""
    source = written(tmp_path / "source.onnx", 18, "a = Min(x, high) c = Max(a, low)", -200000)
    verdict = verify(source, written(tmp_path / "file.onnx", 18, "c = Clip(x, low, high)", -200000), level="quick")
    assert verdict.check("derivation").status != "pass", verdict.summary()
