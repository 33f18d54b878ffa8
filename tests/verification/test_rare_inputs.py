"""Integers that are only computed with go far, places count from the end, and quick verdicts look at both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Status

HEAD = '<ir_version: 10, opset_import: ["": 23]> g '
WHOLE = (
    HEAD
    + """(int64[n, 4] x) => (int64[n, 4] y)
    <int64 many = {{100000}}, int64 mask = {{65535}}, int64 less = {{32767}}, int64 one = {{1}}> {{ {} }}"""
)
SHIFTED = HEAD + "(uint32[n, 4] x) => (uint32[n, 4] y) <uint32 by = {{8}}> {{ {} }}"
LOOKED_UP = (
    HEAD
    + """(int64[n] i) => (float[n, 2] y) <float[6, 2] table = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 3}},
    int64 zero = {{0}}, int64 five = {{5}}, int64 six = {{6}}> {{ {} y = Gather(table, j) }}"""
)
CLASSES = HEAD + "(float[n, 5] x, int64[n] t) => (float y) {{ y = SoftmaxCrossEntropyLoss<ignore_index = {}>(x, t) }}"
MASKED = (
    HEAD
    + """(float[n, 4] x, bool[n, 4] m) => (float[n, 4] y) <float zero = {{0}}, float low = {{-10000}}> {{
    f = Where(m, zero, low) s = {}(x, f) y = Softmax(s) }}"""
)


def judged(folder: Path, graph: str, right: str, file: str, level: str) -> Status:
    paths = folder / "reference.onnx", folder / "net.onnx"
    for path, text in zip(paths, (right, file), strict=True):
        onnx.save(onnx.parser.parse_model(graph.format(text)), path)
    return verify(paths[0], paths[1], level=level).status


@pytest.mark.parametrize("level", ["quick", "default"])
@pytest.mark.parametrize(
    ("graph", "right", "wrong"),
    [
        (WHOLE, "a = Mul(x, many) y = Div(a, many)", "y = Identity(x)"),
        (WHOLE, "y = Add(x, one)", "a = Cast<to = 11>(x) b = Cast<to = 7>(a) y = Add(b, one)"),
        (WHOLE, "y = BitwiseAnd(x, mask)", "y = BitwiseAnd(x, less)"),
        (WHOLE, "y = BitwiseAnd(x, mask)", "y = Identity(x)"),
        (
            SHIFTED,
            'a = BitShift<direction = "LEFT">(x, by) y = BitShift<direction = "RIGHT">(a, by)',
            "y = Identity(x)",
        ),
        (LOOKED_UP, "j = Identity(i)", "j = Clip(i, zero, five)"),
        (LOOKED_UP, "j = Identity(i)", "j = Abs(i)"),
        (CLASSES, "-100", "4"),
    ],
    ids=["product", "through float64", "bits", "bits lost", "shifted out", "bound places", "signs of places", "class"],
)
def test_what_shows_on_few_integers_alone_fails(graph: str, right: str, wrong: str, level: str, tmp_path: Path) -> None:
    """100000 x wraps from 2^63 / 100000 on, float64 holds 2^53, and -1 is a table's last row."""
    assert judged(tmp_path, graph, right, wrong, level) is Status.FAIL


REAL = HEAD + """(float[n, 6] x) => (float[n, 6] y) <float half = {{0.5}}, float far = {{7.25}}> {{ {} }}"""
PLACES = HEAD + "(float[n, 6] x) => (int64[n, 1] y) {{ y = ArgMax<axis = 1, select_last_index = {}>(x) }}"
COUNTS = (
    HEAD
    + """(int64[n, 6] x) => (float[n, 6] y) <int64 fifty = {{50}}> {{
    k = {}(x, fifty) y = Cast<to = 1>(k) }}"""
)


@pytest.mark.parametrize("level", ["quick", "default"])
@pytest.mark.parametrize(
    ("graph", "right", "wrong"),
    [
        (REAL, "y = Round(x)", "a = Add(x, half) y = Floor(a)"),
        (REAL, "k = Greater(x, far) y = Cast<to = 1>(k)", "k = GreaterOrEqual(x, far) y = Cast<to = 1>(k)"),
        (PLACES, "0", "1"),
        (COUNTS, "Less", "LessOrEqual"),
    ],
    ids=["halves", "the bound itself", "the largest twice", "the last count"],
)
def test_what_shows_on_equal_numbers_alone_fails(
    graph: str, right: str, wrong: str, level: str, tmp_path: Path
) -> None:
    """Round(2.5) is 2, and N(0, 1) holds neither halves, nor 7.25, nor one number twice."""
    assert judged(tmp_path, graph, right, wrong, level) is Status.FAIL


@pytest.mark.parametrize(
    ("graph", "right", "file"),
    [
        (WHOLE, "y = BitwiseAnd(x, mask)", "a = Add(mask, one) y = Mod(x, a)"),
        (WHOLE, "y = Identity(x)", "a = Cast<to = 7>(x) y = Identity(a)"),
        (LOOKED_UP, "j = Identity(i)", "j = Mod(i, six)"),
    ],
    ids=["remainder", "cast", "places"],
)
def test_what_is_the_same_on_them_passes(graph: str, right: str, file: str, tmp_path: Path) -> None:
    assert judged(tmp_path, graph, right, file, "quick") is Status.PASS


def test_rows_masked_whole_are_judged_at_every_level(tmp_path: Path) -> None:
    """Beside -10000 alone, scores lose digits that a maximum in their place does not have."""
    x = np.array([0.25, 0.5, 0.75, 1.0])
    assert not np.allclose(np.exp(x), np.exp(np.zeros(4)))
    assert judged(tmp_path, MASKED, "Add", "Min", "quick") is Status.FAIL
