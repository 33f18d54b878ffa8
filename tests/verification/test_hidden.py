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
    assert verdict.status is Status.FAIL  # on numbers around 300


def test_what_acts_where_it_shows_is_asked_no_more(tmp_path: Path):
    """A maximum and a minimum that make an absolute value: no law knows it, and each side shows."""
    paths = [tmp_path / "reference.onnx", tmp_path / "net.onnx"]
    for path, text in zip(paths, ("b = Abs(a)", "m = Neg(a) b = Max(a, m)"), strict=True):
        onnx.save(onnx.parser.parse_model(GATED.format(text).replace("c = Clip(q, less, one)", "c = Tanh(q)")), path)
    verdict = verify(paths[0], paths[1])
    assert verdict.status is Status.PASS, verdict.reasons


ON_INPUTS = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 3] given) => (float[n, 3] y)
    <float[3, 3] v = {{1, -2, 2, 2, 1, -1, 1, 4, 1}}, float less = {{-1}}, float one = {{1}}, float zero = {{0}},
     float large = {{300}}> {{ x = Elu(given) {} q = MatMul(b, v) y = Clip(q, less, one) }}"""
"""What follows from given is not proportional to it, so that no inputs are drawn by the size of the bound."""
OTHERWISE = """s = ReduceSum(x) t = Abs(s) k = GreaterOrEqual(t, zero)
    b = If(k) <then_branch = one () => (float[n, 3] p) {{ p = {} }},
    else_branch = two () => (float[n, 3] r) {{ r = Neg(x) }}>"""
BY_ROWS = "b = Scan<num_scan_inputs = 1, body = part (float[3] row) => (float[3] out) {{ out = {} }}>(x)"


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("b = Identity(x)", "b = Min(x, large)", "Min 'b'"),
        ("b = Identity(x)", "k = Greater(x, large) b = Where(k, large, x)", "Where 'b'"),
        ("b = Relu(x)", "b = Clip(x, zero, large)", "Clip 'b'"),
        (OTHERWISE.format("Identity(x)"), OTHERWISE.format("Min(x, large)"), "Min 'p'"),
        (BY_ROWS.format("Identity(row)"), BY_ROWS.format("Min(row, large)"), "Min 'out'"),
    ],
    ids=["bound", "choice", "other-bound", "branch", "rows"],
)
def test_what_reads_the_inputs_themselves_has_to_act_where_it_shows(
    right: str, wrong: str, named: str, tmp_path: Path
) -> None:
    """A bound on an input, one beside another that shows, and one in a body, in front of a gate that is open there."""
    paths = [tmp_path / "reference.onnx", tmp_path / "net.onnx"]
    for path, text in zip(paths, (right, wrong), strict=True):
        onnx.save(onnx.parser.parse_model(ON_INPUTS.format(text)), path)
    x, v = np.array([[1000.0, 2500, 0]]), np.array([[1, -2, 2], [2, 1, -1], [1, 4, 1]])
    assert (np.clip(x @ v, -1, 1) != np.clip(np.minimum(x, 300) @ v, -1, 1)).any()
    verdict = verify(paths[0], paths[1])
    assert verdict.status is Status.NOT_EXERCISED, verdict.reasons
    [detail] = [check.detail for check in verdict.checks if check.name is Question.IDLE]
    assert f"what is returned by {named} where it is not what was read" in detail


@pytest.mark.parametrize("form", [OTHERWISE, BY_ROWS], ids=["branch", "rows"])
def test_what_shows_in_a_body_is_asked_no_more(form: str, tmp_path: Path) -> None:
    read = "x" if form == OTHERWISE else "row"
    right, wrong = (form.format(text) for text in (f"Abs({read})", f"Max({read}, m)"))
    wrong = wrong.replace("p = ", f"m = Neg({read}) p = ").replace("out = ", f"m = Neg({read}) out = ")
    paths = [tmp_path / "reference.onnx", tmp_path / "net.onnx"]
    for path, text in zip(paths, (right, wrong), strict=True):
        onnx.save(onnx.parser.parse_model(ON_INPUTS.format(text).replace("Clip(q, less, one)", "Tanh(q)")), path)
    verdict = verify(paths[0], paths[1])
    assert verdict.status is Status.PASS, verdict.reasons
