"""A scale of scores shows nowhere where a Softmax has one key to weigh; where it may show, it is looked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import MutantReport

GRAPH = """g (float[2,{keys},8] x) => (float[2,{keys},8] y{more})
<float[1] factor = {{0.3}}> {{
  q = Tanh(x)
  a = Mul(q, factor)
  k = Transpose<perm=[0,2,1]>(q)
  s = MatMul(a, k)
  w = Softmax<axis=-1>(s)
  {extra}
  y = MatMul(w, x)
}}"""


def wrong_scales(graph_of: Callable[[str], ir.Model], path: Path, text: str) -> tuple[str, list[MutantReport]]:
    """Return the verdict on a file beside itself, and what became of wrong scales of its map."""
    ir.save(graph_of(text), path)
    verdict = verify(path, path)
    (site,) = verdict.sites
    return verdict.status, [mutant for mutant in site.mutants if mutant.name.startswith("scale")]


def test_what_one_key_weighs_is_one(graph_of: Callable[[str], ir.Model], tmp_path: Path):
    text = GRAPH.format(keys=1, more="", extra="")
    status, mutants = wrong_scales(graph_of, tmp_path / "g.onnx", text)
    assert status == "pass"
    assert len(mutants) == 2
    assert all(mutant.harmless and "over one element" in mutant.note for mutant in mutants)


@pytest.mark.parametrize(
    "change",
    [
        {"keys": 2},  # they share the weight
        {"keys": "n"},  # one in the example at most
        {"more": ", float[2,1,1] z", "extra": "z = Identity(s)"},  # the score is an output
        {"more": ", float[2,1,1] z", "extra": "t = Add(w, s) z = Mul(t, t)"},  # another operator reads it
    ],
)
def test_what_may_show_is_seen(graph_of: Callable[[str], ir.Model], tmp_path: Path, change: dict[str, object]):
    text = GRAPH.format(**{"keys": 1, "more": "", "extra": ""} | change)
    status, mutants = wrong_scales(graph_of, tmp_path / "g.onnx", text)
    assert status == "pass"
    assert [mutant.killed for mutant in mutants] == [True, True]
