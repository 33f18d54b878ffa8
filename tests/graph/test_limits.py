"""A few bytes of a graph may ask for terabytes or years: an error of ours, before anything is asked of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import normdeploy as nd
from normdeploy.errors import GraphError, NormdeployError
from normdeploy.graph import Evaluator, load_graph

HUGE = "1000000000000"
BODY = "body (int64 i, bool c, float[n,4] v) => (bool c2, float[n,4] v2) { c2 = Identity(c)\n v2 = Identity(v) }"
GRAPHS = {
    "Loop": f"t = Constant<value = int64 {{{HUGE}}}>()\n y = Loop<body = {BODY}>(t, , x)",
    "Range": (
        f"a = Constant<value = int64 {{0}}>()\n b = Constant<value = int64 {{{HUGE}}}>()\n"
        "d = Constant<value = int64 {1}>()\n r = Range(a, b, d)\n s = ReduceMax<keepdims = 0>(r)\n"
        "f = Cast<to = 1>(s)\n y = Add(x, f)"
    ),
    "ConstantOfShape": (
        f"n = Constant<value = int64[1] {{{HUGE}}}>()\n z = ConstantOfShape(n)\n"
        "s = ReduceMax<keepdims = 0>(z)\n y = Add(x, s)"
    ),
    "Tile": (
        f"n = Constant<value = int64[2] {{{HUGE}, 1}}>()\n z = Tile(x, n)\n"
        "s = ReduceMax<keepdims = 0>(z)\n y = Add(x, s)"
    ),
}


def write(path: Path, body: str) -> Path:
    header = '<ir_version: 9, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y)'
    onnx.save(parser.parse_model(f"{header} {{ {body} }}"), path)
    return path


@pytest.mark.parametrize("name", GRAPHS)
def test_what_asks_for_too_much_is_refused_by_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    huge, plain = write(tmp_path / "huge.onnx", GRAPHS[name]), write(tmp_path / "plain.onnx", "y = Identity(x)")
    with pytest.raises(GraphError, match=rf"operator {name} .* expected .*: correct"):
        Evaluator(load_graph(huge)).run({"x": np.ones((2, 4), np.float32)})
    monkeypatch.setattr("normdeploy.graph.operators.limits.MOST_TURNS", 100)  # turns that are done before it is refused
    for reference, file in ((huge, huge), (plain, huge), (huge, plain)):
        verdict = nd.verify(reference, file, level="quick")
        assert verdict.status in ("error", "fail")
        assert f"operator {name} " in verdict.summary()
    with pytest.raises(NormdeployError):
        nd.fold(huge, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_loop_with_the_largest_trip_count_that_ends_by_its_condition_is_evaluated():
    body = (
        "body (int64 i, bool c, float[n,4] v) => (bool c2, float[n,4] v2) { l = Constant<value = int64 {3}>()\n "
        "c2 = Less(i, l)\n one = Constant<value = float {1.0}>()\n v2 = Add(v, one) }"
    )
    text = f"t = Constant<value = int64 {{9223372036854775807}}>()\n y = Loop<body = {body}>(t, , x)"
    header = '<ir_version: 9, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y)'
    model = parser.parse_model(f"{header} {{ {text} }}")

    found = Evaluator(ir.from_proto(model)).run({"x": np.zeros((2, 4), np.float32)})["y"]
    assert np.array_equal(found.numpy(), np.full((2, 4), 4.0))
