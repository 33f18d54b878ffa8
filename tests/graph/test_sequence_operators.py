"""Sequences put together and taken apart, in float64 against onnxruntime's kernels, in graphs and in bodies."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

import normdeploy as nd
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, load_graph

GRAPH = """<ir_version: 10, opset_import: ["": 20]> g (float[2,4] x) => (float[n,4] y) <int64 at = {{{at}}}> {{
    a = Neg(x) b = Exp(x) s = SequenceConstruct(x, a) {body} y = ConcatFromSequence<axis = 0>(t) }}"""
LOOP = """<ir_version: 10, opset_import: ["": 20]> g (float[b,4] x) => (float[n,4] y)
    <int64 count = {3}, bool on = {1}, float[4] k = {0.5, 2.0, 1.5, 0.25}> {
    s = SequenceEmpty()
    v, t = Loop(count, on, x, s) <body = l (int64 i, bool c, float[b,4] u, seq(float[b,4]) q)
        => (bool d, float[b,4] w, seq(float[b,4]) r) { d = Identity(c) w = Mul(u, k) r = SequenceInsert(q, w) }>
    y = ConcatFromSequence<axis = 0>(t) }"""
MAP = """<ir_version: 10, opset_import: ["": 20]> g (float[b,4] x) => (float[b,4] y)
    <int64 two = {2}, float[2,2] w = {0.5, 2.0, 1.5, 0.25}, float[3] k = {1.0, -2.0, 3.0}, int64[2] at = {2, 0}> {
    s = SplitToSequence<axis = 1>(x, two)
    t, u = SequenceMap(s, s, k) <body = m (float[b,2] p, float[b,2] q, float[3] r) => (float[b,2] v, float[b,2] z) {
        c = Gather<axis = 0>(r, at) d = MatMul(p, w) v = Add(d, c) z = Sub(q, p) }>
    e = ConcatFromSequence<axis = 1>(t) f = ConcatFromSequence<axis = 1>(u) y = Add(e, f) }"""
X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


def written(text: str, folder) -> str:
    path = str(folder / "net.onnx")
    onnx.save(parser.parse_model(text), path)
    return path


@pytest.mark.parametrize("at", [-2, -1, 0, 1])
@pytest.mark.parametrize(
    "body",
    ["t = SequenceInsert(s, b, at)", "t = SequenceInsert(s, b)", "t = SequenceErase(s, at)", "t = SequenceErase(s)"],
)
def test_inserted_and_erased(at: int, body: str, tmp_path):
    path = written(GRAPH.format(at=at, body=body), tmp_path)
    expected = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
    np.testing.assert_allclose(Evaluator(load_graph(path)).run({"x": X})["y"].numpy(), expected, rtol=1e-6)


def test_at_the_end(tmp_path):
    path = written(GRAPH.format(at=2, body="t = SequenceInsert(s, b, at)"), tmp_path)
    found = Evaluator(load_graph(path)).run({"x": X})["y"].numpy()
    np.testing.assert_allclose(found, np.concatenate([X, -X, np.exp(X.astype(np.float64))]), rtol=1e-12)


@pytest.mark.parametrize(("at", "body"), [(3, "t = SequenceInsert(s, b, at)"), (2, "t = SequenceErase(s, at)")])
def test_no_such_place(at: int, body: str, tmp_path):
    with pytest.raises(GraphError, match=rf"place {at} of a sequence of 2"):
        Evaluator(load_graph(written(GRAPH.format(at=at, body=body), tmp_path))).run({"x": X})


def test_mapped(tmp_path):
    path = written(MAP, tmp_path)
    expected = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
    np.testing.assert_allclose(Evaluator(load_graph(path)).run({"x": X})["y"].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("graph", [MAP, LOOP])
@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_file_with_sequences_is_judged_at_every_level(graph: str, level: str, tmp_path):
    """By default the runtime is asked for what each operator returns, and gives no sequence away."""
    right = written(graph, tmp_path)
    assert nd.verify(right, right, level=level).status == "pass"
    (tmp_path / "wrong").mkdir()
    wrong = written(graph.replace("1.5", "1.51"), tmp_path / "wrong")
    assert nd.verify(right, wrong, level=level).status == "fail"


def test_a_tensor_is_not_mapped(tmp_path):
    text = MAP.replace("SequenceMap(s, s, k)", "SequenceMap(x, s, k)")
    with pytest.raises(GraphError, match="SequenceMap takes a sequence"):
        Evaluator(load_graph(written(text, tmp_path))).run({"x": X})
