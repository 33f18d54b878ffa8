"""A bound that one graph has and the other has not says something of itself only where numbers lie beyond it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] given) => (float[n, 4] y)
    <float[4] s = {{1, 2, 3, 4}}, float zero = {{0}}, float far = {{100000}}, float six = {{6}}, float three = {{3}},
     float half = {{0.5}}, float two = {{2}}> {{
    x = LayerNormalization(given, s) {} y = LayerNormalization(h, s) }}"""

RELU, WIDE, SIX = "h = Relu(x)", "h = Clip(x, zero, far)", "h = Clip(x, zero, six)"


BARE = GRAPH.replace("x = LayerNormalization(given, s)", "x = Identity(given)")
"""What is cut is the graph's own input."""


def written(path: Path, text: str, graph: str = GRAPH) -> Path:
    onnx.save(onnx.parser.parse_model(graph.format(text)), path)
    return path


@pytest.mark.parametrize(
    ("reference", "file", "named"),
    [
        (RELU, WIDE, "Clip 'h' cuts at 100000, where the other graph does not"),
        (WIDE, RELU, "the reference's Clip 'h' cuts at 100000, where the other graph does not"),
        (SIX, "a = Mul(x, half) b = Clip(a, zero, three) h = Mul(b, two)", ""),
        (SIX, "a = Relu(x) h = Min(a, six)", ""),
    ],
    ids=["added", "lost", "scaled", "in parts"],
)
def test_each_bound_has_to_be_met(reference: str, file: str, named: str, tmp_path: Path):
    """The other bound of the same Clip, or the Relu in its place, acts in every sample; a norm of four is within 7."""
    verdict = verify(written(tmp_path / "reference.onnx", reference), written(tmp_path / "net.onnx", file))
    found = [check.detail for check in verdict.checks if check.name is Question.IDLE]
    assert verdict.status is (Status.NOT_EXERCISED if named else Status.PASS)
    assert [named in detail for detail in found] == ([True] if named else [])
    assert not any(" 0," in detail for detail in found)  # the bound that both have


@pytest.mark.parametrize("given", [True, False])
def test_inputs_beyond_a_bound_decide(given: bool, tmp_path: Path):
    """On the graph's own inputs: those of its user, and those that are drawn by the size of the bound."""
    data = np.linspace(-1e6, 1e6, 32, dtype=np.float32).reshape(8, 4) if given else None
    reference, file = written(tmp_path / "reference.onnx", RELU, BARE), written(tmp_path / "net.onnx", WIDE, BARE)
    assert verify(reference, file, data=data).status is Status.FAIL
