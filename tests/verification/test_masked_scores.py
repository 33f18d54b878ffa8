"""How far below the others a hidden key's score lies shows in no output, and is no reason to doubt a right file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from normdeploy.verification import Verdict, verify
from normdeploy.verification.samples.roles import hides_scores

GRAPH = """g (float[2,6,8] x, {dtype}[2,6] mask) => (float[2,6,8] y{more})
<float one = {{1}}, float far = {{{far}}}, int64[1] axis = {{1}}> {{
  m = Unsqueeze(mask, axis)
  c = Cast<to=1>(m)
  d = Sub(one, c)
  h = Mul(d, far)
  q = Tanh(x)
  k = Transpose<perm=[0,2,1]>(q)
  s = MatMul(q, k)
  t = Add(s, h)
  w = Softmax<axis=-1>(t)
  y = MatMul(w, x)
  {extra}
}}"""


def written(
    graph_of: Callable[[str], ir.Model], path: Path, *, far: str = "-10000", dtype: str = "int64", extra: str = ""
) -> Path:
    more = ", float[2,1,6] z" if extra else ""
    ir.save(graph_of(GRAPH.format(far=far, dtype=dtype, extra=extra, more=more)), path)
    return path


def hidden(verdict: Verdict) -> dict[str, str]:
    """Return the notes of the mutants that were proven to change hidden scores alone."""
    return {m.name: m.note for site in verdict.sites for m in site.mutants if "scores of Softmax" in m.note}


@pytest.mark.parametrize("dtype", ["int64", pytest.param("int32", marks=pytest.mark.slow), "bool", "float"])
def test_the_number_that_hides_keys_may_be_any_that_hides(
    graph_of: Callable[[str], ir.Model], tmp_path: Path, dtype: str
):
    path = written(graph_of, tmp_path / "g.onnx", dtype=dtype)
    verdict = verify(path, path, level="thorough")
    assert verdict.status == "pass", verdict.summary()
    assert "scale off by one in 1000" in hidden(verdict)
    assert "Softmax" in hidden(verdict)["scale off by one in 1000"]


@pytest.mark.parametrize("change", [{"far": "-2"}, {"extra": "z = Identity(h)"}])
def test_a_number_that_shows_is_not_taken_for_one_that_hides(
    graph_of: Callable[[str], ir.Model], tmp_path: Path, change: dict[str, str]
):
    """Scores lowered a little, a mask that is an output: there a wrong scale is seen."""
    path = written(graph_of, tmp_path / "g.onnx", **change)
    verdict = verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    assert "scale off by one in 1000" not in hidden(verdict)


@pytest.mark.parametrize("far", ["10000", "0", "-1"])
def test_a_file_that_hides_other_keys_or_none_is_wrong(graph_of: Callable[[str], ir.Model], tmp_path: Path, far: str):
    right = written(graph_of, tmp_path / "right.onnx")
    wrong = written(graph_of, tmp_path / "wrong.onnx", far=far)
    assert verify(right, wrong, level="quick").status == "fail"


@pytest.mark.parametrize(
    ("body", "hides"),
    [
        ("h = Mul(m, far) t = Add(s, h) y = Softmax(t)", True),
        ("c = Cast<to=1>(m) d = Sub(one, c) h = Mul(far, d) t = Add(h, s) y = Softmax(t)", True),
        ("h = Mul(m, two) t = Add(s, h) y = Softmax(t)", False),
        ("h = Mul(m, far) t = Add(s, h) u = Tanh(t) y = Softmax(u)", False),
        ("h = Mul(m, far) t = Add(s, h) v = Softmax(t) y = Add(v, m)", False),
        ("h = Mul(m, s) t = Mul(h, far) y = Softmax(t)", False),
        ("y = Add(s, m)", False),
    ],
)
def test_a_float_is_a_mask_where_it_only_hides_scores(graph_of: Callable[[str], ir.Model], body: str, hides: bool):
    constants = "<float one = {1}, float two = {2}, float far = {-10000}>"
    model = graph_of(f"g (float[2,6] s, float[2,6] m) => (float[2,6] y) {constants} {{ {body} }}")
    m = next(value for value in model.graph.inputs if value.name == "m")
    assert hides_scores(m) is hides
