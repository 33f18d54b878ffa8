"""The smallest of x is the negative of the largest of -x: confirmed for every input where the file has it so."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status
from normdeploy.verification.record.verdict import Verdict

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g ({0}[n, 6] x) => ({1}) <float[6] s = {{1, 2, 3, 4, 5, 6}},
    int64[1] two = {{2}}, int64[1] axis = {{1}}> {{ {2} }}"""
NORM = "h = LayerNormalization(x, s) "
BEST = "float[n, 2] y, int64[n, 2] i"

PAIRS = {
    "the best few": (BEST, "y, i = TopK<largest = 0>(h, two)", "a = Neg(h) b, i = TopK(a, two) y = Neg(b)"),
    "unordered": (
        BEST,
        "y, i = TopK<largest = 0, sorted = 1, axis = -1>(h, two)",
        "a = Neg(h) b, i = TopK<axis = 1>(a, two) y = Neg(b)",
    ),
    "a minimum": ("float[n, 1] y", "y = ReduceMin(h, axis)", "a = Neg(h) b = ReduceMax(a, axis) y = Neg(b)"),
    "its place": (
        "int64[n] i, float[n, 6] h",
        "i = ArgMin<axis = 1, keepdims = 0, select_last_index = 1>(h)",
        "a = Neg(h) i = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(a)",
    ),
}


def judged(folder: Path, outputs: str, one: str, other: str, *, dtype: str = "float", norm: str = NORM) -> Verdict:
    for name, text in (("reference", one), ("net", other)):
        onnx.save(onnx.parser.parse_model(GRAPH.format(dtype, outputs, norm + text)), folder / f"{name}.onnx")
    return verify(folder / "reference.onnx", folder / "net.onnx")


def confirmed(verdict: Verdict) -> bool:
    return [check.status for check in verdict.checks if check.name is Question.DERIVATION] == [Status.PASS]


@pytest.mark.parametrize("name", PAIRS)
def test_either_is_confirmed_as_the_other(name: str, tmp_path: Path) -> None:
    outputs, smallest, largest = PAIRS[name]
    for pair in ((smallest, largest), (largest, smallest)):
        verdict = judged(tmp_path, outputs, *pair)
        assert verdict.status is Status.PASS, verdict.summary()
        assert confirmed(verdict)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("the best few", "y = Neg(b)", "y = Identity(b)"),
        ("the best few", "a = Neg(h)", "a = Identity(h)"),
        ("the best few", "TopK(a", "TopK<largest = 0>(a"),
        ("a minimum", "a = Neg(h)", "a = Identity(h)"),
        ("its place", "ArgMax", "ArgMin"),
        ("its place", "select_last_index = 1>(a)", "select_last_index = 0>(a)"),
    ],
)
def test_what_is_something_else_is_not(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    outputs, smallest, largest = PAIRS[name]
    assert right in largest
    verdict = judged(tmp_path, outputs, smallest, largest.replace(right, wrong))
    assert verdict.status is not Status.PASS
    assert not confirmed(verdict)


def test_of_integers_it_is_not_confirmed(tmp_path: Path) -> None:
    """-(-2147483648) is no integer of 32 bits."""
    smallest, largest = "y = ReduceMin(x, axis)", "a = Neg(x) b = ReduceMax(a, axis) y = Neg(b)"
    assert not confirmed(judged(tmp_path, "int32[n, 1] y", smallest, largest, dtype="int32", norm=""))


@pytest.mark.parametrize(
    ("operator", "axes"),
    [
        ("i = ArgMax<axis = {}, keepdims = 0>(h)", (1, -1)),
        ("v, j = TopK<axis = {}>(h, axis) i = Squeeze(j, axis)", (1, -1)),
        ("p = Softmax<axis = {}>(h) i = ArgMax<axis = 1, keepdims = 0>(p)", (-1, 1)),
    ],
)
def test_an_axis_is_one_from_either_end(operator: str, axes: tuple[int, int], tmp_path: Path) -> None:
    one, other = (operator.format(axis) for axis in axes)
    assert confirmed(judged(tmp_path, "int64[n] i", one, other))
    assert not confirmed(judged(tmp_path, "int64[n] i", one, other.replace(f"axis = {axes[1]}", "axis = 0", 1)))
