"""What no algebra explains and no output of any sample depends on could be anything: that is no pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => (float[n, 3] y)
    <float[4, 3] w, float[3] far, float one = {{1}}, float less = {{-1}}, float two = {{2}}> {{
    p = MatMul(x, w) a = Add(p, far) {} c = Clip(b, less, one) y = Add(p, c) }}"""
"""A sum of a product and of what saturates: ``far`` is beyond all that samples make."""


def written(path: Path, text: str, far: float) -> Path:
    model = onnx.parser.parse_model(GRAPH.format(text))
    drawn = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    numbers = {"w": drawn, "far": np.array([far, -far, far], np.float32)}
    for tensor in list(model.graph.initializer):
        if tensor.name in numbers:
            model.graph.initializer.remove(tensor)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in numbers.items())
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    "text",
    ["h = Cast<to = 16>(a) b = Cast<to = 1>(h)", "h = Cast<to = 10>(a) b = Cast<to = 1>(h)"],
    ids=["bfloat16", "float16"],
)
@pytest.mark.parametrize(("far", "status"), [(9e8, Status.NOT_EXERCISED), (0.0, Status.FAIL)])
def test_what_a_bound_hides_in_every_sample_is_no_pass(text: str, far: float, status: Status, tmp_path: Path):
    reference = written(tmp_path / "reference.onnx", "b = Identity(a)", far)
    verdict = verify(reference, written(tmp_path / "net.onnx", text, far))
    assert verdict.status is status
    found = [check.detail for check in verdict.checks if check.name is Question.IDLE]
    if status is Status.NOT_EXERCISED:
        [detail] = found
        assert "depends on what is returned by " in detail
        assert "Cast 'h'; Cast 'b'" in detail


def test_what_reaches_an_output_in_some_sample_is_asked_no_more(tmp_path: Path):
    """Half of a sum twice is the sum, and no law knows it where a square is between; each part shows."""
    far, reference = 0.0, written(tmp_path / "reference.onnx", "b = Mul(a, a)", 0.0)
    verdict = verify(reference, written(tmp_path / "net.onnx", "t = Mul(a, two) u = Div(a, two) b = Mul(t, u)", far))
    assert verdict.status is Status.PASS, verdict.reasons


GATED = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => (float[n, 3] y)
    <float[4, 3] w = {{1, 2, 1, 2, 1, 1, 1, 1, 2, 2, 2, 1}}, float[3, 3] v = {{1, 2, 2, 2, 1, 1, 1, 1, 1}},
     float less = {{-1}}, float one = {{1}}, float large = {{300}}> {{
    a = MatMul(x, w) {} q = MatMul(b, v) c = Clip(q, less, one) y = Add(a, c) }}"""
"""A gate that is open as far as it goes where each of its operands is large."""


def test_what_acts_only_where_nothing_shows_it_is_no_pass(tmp_path: Path):
    paths = [tmp_path / "reference.onnx", tmp_path / "net.onnx"]
    for path, text in zip(paths, ("b = Identity(a)", "b = Min(a, large)"), strict=True):
        onnx.save(onnx.parser.parse_model(GATED.format(text)), path)
    x = np.array([[1e4, -1e4, 0, 0]])  # b is far from a, and the gate moves
    a = x @ np.array([[1, 2, 1], [2, 1, 1], [1, 1, 2], [2, 2, 1]])
    v = np.array([[1, 2, 2], [2, 1, 1], [1, 1, 1]])
    assert (np.clip(a @ v, -1, 1) != np.clip(np.minimum(a, 300) @ v, -1, 1)).any()
    verdict = verify(paths[0], paths[1])
    assert verdict.status is not Status.PASS
    assert any("Min" in reason for reason in verdict.reasons)


def test_what_acts_where_it_shows_is_asked_no_more(tmp_path: Path):
    """A maximum and a minimum that make an absolute value: no law knows it, and each side shows."""
    paths = [tmp_path / "reference.onnx", tmp_path / "net.onnx"]
    for path, text in zip(paths, ("b = Abs(a)", "m = Neg(a) b = Max(a, m)"), strict=True):
        onnx.save(onnx.parser.parse_model(GATED.format(text).replace("c = Clip(q, less, one)", "c = Tanh(q)")), path)
    verdict = verify(paths[0], paths[1])
    assert verdict.status is Status.PASS, verdict.reasons
