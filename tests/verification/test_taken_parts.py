"""A branch that no sample takes, and a limit that ends no Loop in any sample, show nothing of themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status
from normdeploy.verification.record.verdict import Verdict

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] given) => (float[n, 4] y)
    <float far = {{1000000}}, float two = {{2}}, float half = {{0.5}}, float near = {{0.1}}, bool yes = {{1}},
     int64 hundred = {{100}}, int64 sixty = {{60}}, int64 always = {{9223372036854775807}}> {{ x = Elu(given) {} }}"""
"""What follows from given is not proportional to it, so that no inputs are drawn by the size of far."""

IF = """s = ReduceMax<keepdims = 0>(x) k = Greater(s, far)
    y = If(k) <then_branch = one () => (float[n, 4] a) {{ {} }}, else_branch = two () => (float[n, 4] b) {{ {} }}>"""
LOOP = """y = Loop({}, yes, x) <body = part (int64 i, bool c, float[n, 4] s) => (bool d, float[n, 4] t) {{
    t = Mul(s, half) r = ReduceMax<keepdims = 0>(t) d = Greater(r, near) }}>"""
SCAN = """y = Scan<num_scan_inputs = 1, body = part (float[4] row) => (float[4] out) {{ s = ReduceMax<keepdims = 0>(row)
    k = Greater(s, far) out = If(k) <then_branch = one () => (float[4] a) {{ {} }},
    else_branch = two () => (float[4] b) {{ b = Neg(row) }}> }}>(x)"""

DOUBLE, PLAIN, OTHER = "a = Mul(x, two)", "a = Identity(x)", "b = Neg(x)"
SQUARE, PARTS = "b = Mul(x, x)", "h = Mul(x, two) q = Div(x, two) b = Mul(h, q)"


def judged(folder: Path, right: str, wrong: str, data: np.ndarray | None = None) -> Verdict:
    paths = folder / "reference.onnx", folder / "net.onnx"
    for path, text in zip(paths, (right, wrong), strict=True):
        onnx.save(onnx.parser.parse_model(GRAPH.format(text)), path)
    return verify(paths[0], paths[1], data=data)


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        (IF.format(DOUBLE, OTHER), IF.format(PLAIN, OTHER), "If 'y' never took its then_branch in all"),
        (IF.format(DOUBLE, OTHER), "y = Neg(x)", "the reference's If 'y' never took its then_branch in all"),
        (SCAN.format("a = Mul(row, two)"), SCAN.format("a = Identity(row)"), "If 'out' never took its then_branch"),
        (LOOP.format("hundred"), LOOP.format("sixty"), "Loop 'y' never ended by its limit of 60 turns"),
        (LOOP.format("always"), LOOP.format("sixty"), "Loop 'y' never ended by its limit of 60 turns"),
        (LOOP.format("sixty"), LOOP.format("always"), "the reference's Loop 'y' never ended by its limit of 60 turns"),
    ],
    ids=["branch", "lost branch", "branch in a body", "limit", "added limit", "lost limit"],
)
def test_what_no_sample_takes_is_named(right: str, wrong: str, named: str, tmp_path: Path) -> None:
    verdict = judged(tmp_path, right, wrong)
    assert verdict.status is Status.NOT_EXERCISED, verdict.reasons
    [detail] = [check.detail for check in verdict.checks if check.name is Question.IDLE]
    assert named in detail


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (IF.format(DOUBLE, OTHER), IF.format(PLAIN, OTHER)),
        (LOOP.format("hundred"), LOOP.format("sixty")),
    ],
    ids=["branch", "limit"],
)
def test_inputs_that_take_it_decide(right: str, wrong: str, tmp_path: Path) -> None:
    """0.5 ** 60 of 1e30 is above 0.1, and 0.5 ** 100 of it is the sixtieth's, halved forty times more."""
    assert judged(tmp_path, right, wrong, np.full((1, 4), 1e30, np.float32)).status is Status.FAIL


@pytest.mark.parametrize(
    ("right", "file"),
    [
        (IF.format(DOUBLE, SQUARE), IF.format(DOUBLE, PARTS)),
        (IF.format(DOUBLE, SQUARE), IF.format("a = Add(x, x)", PARTS)),
        (LOOP.format("hundred"), LOOP.format("hundred").replace("t = Mul(s, half)", "t = Div(s, two)")),
    ],
    ids=["the same branch", "a branch that algebra confirms", "the same limit"],
)
def test_what_algebra_confirms_need_not_be_taken(right: str, file: str, tmp_path: Path) -> None:
    verdict = judged(tmp_path, right, file)
    assert verdict.status is Status.PASS, verdict.reasons
