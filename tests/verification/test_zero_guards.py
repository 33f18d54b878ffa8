"""A small number that keeps from 0 what has a pole behind it is not lost in the rounding of a sum and confirmed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime_outputs import run_onnxruntime

import normdeploy as nd
from normdeploy.graph import load_graph
from normdeploy.graph.derivation import Derivation
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report
from normdeploy.verification.hints import unchanged
from normdeploy.verification.record.answers import Question, Status

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
NUMBERS = "float one = {1.0}, float two = {2.0}, float small = {1e-10}, float tiny = {2e-10}, float half = {-0.5}"


def graph(text: str, folder: Path, name: str, numbers: str = NUMBERS) -> Path:
    model = f"{HEAD} g (float[n, 3] x, bool[n, 3] m) => (float[n, 3] y) <{numbers}> {{ {text} }}"
    onnx.save(onnx.parser.parse_model(model), folder / name)
    return folder / name


def checked(source: str, file: str, folder: Path, numbers: str = NUMBERS) -> Report:
    ours, theirs = (
        load_graph(graph(text, folder, name, numbers)) for text, name in ((source, "source.onnx"), (file, "net.onnx"))
    )
    sizes = [{"x": (n, 3), "m": (n, 3)} for n in (2, 5)]
    reports = [check_derivation(ours, theirs, hints, sizes) for hints in (unchanged(ours), Derivation())]
    return reports[0] if reports[0].confirmed else reports[1]


SUM = "r = Sub(one, x) g = Add(r, small) "
"""1 - x + 1e-10"""
LOST = "g = Sub(one, x) "

POLES = {
    "a logarithm": "y = Log(g)",
    "a reciprocal": "y = Reciprocal(g)",
    "a root": "y = Sqrt(g)",
    "a divisor": "y = Div(x, g)",
    "a power": "y = Pow(g, half)",
    "moved in front": "t = Transpose <perm = [1, 0]> (g) l = Log(t) y = Transpose <perm = [1, 0]> (l)",
    "scaled in front": "s = Mul(g, two) y = Log(s)",
    "at the end of a way": "a = Abs(g) b = Mul(a, x) c = Add(b, g) y = Log(c)",
}


@pytest.mark.parametrize("pole", POLES)
def test_one_shift_in_place_of_two_is_not_confirmed_in_front_of_a_pole(pole: str, tmp_path: Path) -> None:
    source, file = SUM + POLES[pole], LOST + POLES[pole]
    assert not checked(source, file, tmp_path).confirmed
    at_one = {"x": np.ones((1, 3), np.float32), "m": np.ones((1, 3), bool)}
    want, have = (  # the two are other functions, and onnxruntime sees it
        run_onnxruntime(tmp_path / name, at_one)[0] for name in ("source.onnx", "net.onnx")
    )
    assert not np.allclose(want, have, rtol=1e-3, atol=0)


@pytest.mark.parametrize("pole", POLES)
def test_the_same_graph_is_confirmed(pole: str, tmp_path: Path) -> None:
    assert checked(SUM + POLES[pole], SUM + POLES[pole], tmp_path).confirmed


OTHERWISE = {
    "a bound": ("r = Sub(x, one) g = Max(r, small) y = Log(g)", "r = Max(x, one) g = Sub(r, one) y = Log(g)"),
    "a clip": (
        "r = Sub(x, one) g = Clip(r, small, two) y = Log(g)",
        "r = Clip(x, one, three) g = Sub(r, one) y = Log(g)",
    ),
    "a choice": (
        "r = Sub(x, one) g = Where(m, r, small) y = Log(g)",
        "r = Where(m, x, one) g = Sub(r, one) y = Log(g)",
    ),
    "a sum with another": (
        "r = Sub(one, x) g = Add(r, small) s = Sigmoid(x) t = Add(g, s) y = Log(t)",
        "s = Sigmoid(x) r = Sub(s, x) t = Add(r, one) y = Log(t)",
    ),
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_nor_is_it_lost_in_another_way(way: str, tmp_path: Path) -> None:
    source, file = OTHERWISE[way]
    assert not checked(source, file, tmp_path, f"{NUMBERS}, float three = {{3.0}}").confirmed


RIGHT = {
    "no pole behind it": (SUM + "y = Sigmoid(g)", LOST + "y = Sigmoid(g)"),
    "a whole power": (SUM + "y = Pow(g, two)", LOST + "y = Pow(g, two)"),
    "a shift that the sum holds": ("r = Sub(one, x) g = Add(r, large) y = Log(g)", "g = Sub(sum, x) y = Log(g)"),
    "the guard itself is scaled": (
        "r = Sub(one, x) g = Add(r, small) d = Mul(g, two) y = Log(d)",
        "r = Sub(one, x) d = Mul(r, two) g = Add(d, tiny) y = Log(g)",
    ),
    "a bias": ("p = Gemm(x, w, b) g = Add(p, small) y = Log(g)", "g = Gemm(x, w, b) y = Log(g)"),
}


@pytest.mark.parametrize("way", RIGHT)
def test_where_nothing_is_lost_the_file_is_confirmed(way: str, tmp_path: Path) -> None:
    source, file = RIGHT[way]
    numbers = f"{NUMBERS}, float large = {{0.0009765625}}, float sum = {{1.0009765625}}"
    numbers += ", float[3, 3] w = {1.0, 2.0, -1.0, 0.5, 1.0, 3.0, -2.0, 1.0, 1.0}, float[3] b = {0.25, 0.5, 1.0}"
    assert checked(source, file, tmp_path, numbers).confirmed


@pytest.mark.parametrize("pole", ["a logarithm", "a reciprocal", "a root"])
@pytest.mark.parametrize("front", ["Sigmoid", "Identity", "Exp"])
def test_a_file_without_the_guard_fails(pole: str, front: str, tmp_path: Path) -> None:
    """p = 1 is what some sample makes of each of these."""
    texts = [text.replace("x)", "p)") for text in (SUM, LOST)]
    source, file = (f"p = {front}(x) {text}{POLES[pole]}" for text in texts)
    paths = graph(source, tmp_path, "source.onnx"), graph(file, tmp_path, "net.onnx")
    assert nd.verify(*paths, level="quick").status is Status.FAIL


def test_a_guard_that_no_sample_needs_is_named(tmp_path: Path) -> None:
    """x / (1 + x^2) is at most a half: 1 - p is never near 0, and nobody knows but by analysis."""
    front = "q = Mul(x, x) d = Add(q, one) p = Div(x, d) "
    source, file = (front + text.replace("x)", "p)") + POLES["a logarithm"] for text in (SUM, LOST))
    paths = graph(source, tmp_path, "source.onnx"), graph(file, tmp_path, "net.onnx")
    verdict = nd.verify(*paths, level="quick")
    assert verdict.status is Status.NOT_EXERCISED
    idle = next(check for check in verdict.checks if check.name is Question.IDLE)
    assert idle.status is Status.NOT_EXERCISED
    assert "the reference's Add 'g' added 1e-10 to nothing near 0" in idle.detail
