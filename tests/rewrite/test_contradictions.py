"""Graphs whose types and sizes do not fit each other end in an error of ours, and what is only odd is rewritten."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

import normdeploy as nd
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, load_graph
from normdeploy.rewrite import rewrite

HEAD = '<ir_version: 8, opset_import: ["" : 17]> f'
NORM = "float[3] g = {1, 2, 0.5}, float[3] b = {0, 1, -1}, float[3] m = {0.1, 0, 2}, float[3] v = {1, 0.5, 2}"
CONTRADICTIONS = {
    "a kernel of one axis": f"(float[n,3,4,4] x) => (float[n,3,4,4] y) <{NORM}>"
    "{ c = Conv (x, g) y = BatchNormalization (c, g, b, m, v) }",
    "a shift of another length": "(float[n,3,4,4] x) => (float[n,3,4,4] y)"
    "<float[3] g = {1, 2, 0.5}, float[9] b = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] m = {0.1, 0, 2}, "
    "float[3] v = {1, 0.5, 2}> { y = BatchNormalization (x, g, b, m, v) }",
    "parts that are no whole numbers": "(float[n,6] x) => (float[n,3] y, float[n,3] z) <float[2] p = {3, inf}>"
    "{ y, z = Split <axis = 1> (x, p) }",
}


def saved(text: str, path: Path) -> Path:
    path.write_bytes(parser.parse_model(f"{HEAD} {text}").SerializeToString())
    return path


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_contradictions_are_told(what: str, tmp_path: Path) -> None:
    """By rewriting, or where that leaves the operator alone, by evaluating it."""
    path = saved(CONTRADICTIONS[what], tmp_path / "net.onnx")
    with pytest.raises(GraphError):
        understood(path)


def understood(path: Path) -> None:
    model = load_graph(path)
    rewrite(model)
    sizes = {v.name: [size if isinstance(size, int) else 2 for size in v.shape] for v in model.graph.inputs}
    Evaluator(model).run({name: np.zeros(shape, np.float32) for name, shape in sizes.items()})


def test_the_empty_word_is_no_size(tmp_path: Path) -> None:
    nodes = "{ h = Relu (x) y = BatchNormalization (h, g, b, m, v) }"
    path = saved(f"(float[n,3,4,4] x) => (float[n,3,4,4] y) <{NORM}> {nodes}", tmp_path / "net.onnx")
    proto = onnx.load(path)
    for place in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[place].dim_param = ""
    path.write_bytes(proto.SerializeToString())
    model = load_graph(path)
    words = [size.value for size in model.graph.inputs[0].shape if not isinstance(size, int)]
    assert words == ["n", None, None]
    assert rewrite(model).ledger


def test_a_declared_size_of_terabytes_is_not_drawn_for_a_check(tmp_path: Path) -> None:
    shape, nodes = "float[n,3,4,1000000000000]", "{ y = BatchNormalization (x, g, b, m, v) }"
    result = rewrite(load_graph(saved(f"({shape} x) => ({shape} y) <{NORM}> {nodes}", tmp_path / "net.onnx")))
    assert len(result.model.graph)


def test_what_a_body_reads_of_unknown_type_contradicts_nothing(tmp_path: Path) -> None:
    """onnx infers nothing behind a Compress of opset 10, and asks for types where a body reads it from around."""
    text = """<ir_version: 5, opset_import: ["" : 10]> f (bool k, float[2,3] x) => (float[2,q] y)
        <bool[3] c = {1, 0, 1}, float[2] s = {2, 4}> { p = Compress <axis = 1> (x, c) h = Mul (p, s)
        y = If (k) <then_branch = a () => (float[2,q] t) { t = Clip <min = 0.0> (h) },
        else_branch = e () => (float[2,q] u) { u = Neg (h) }> }"""
    plain, folded = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(parser.parse_model(text), plain)
    assert nd.fold(plain, folded).verdict.status == "pass"
    x = np.array([[1, 2, -3], [-4, 5, 6]], np.float32)
    session = ort.InferenceSession(folded, providers=["CPUExecutionProvider"])
    for k, expected in ((True, [[2, 0], [0, 24]]), (False, [[-2, 12], [8, -24]])):
        np.testing.assert_array_equal(session.run(None, {"k": np.array(k), "x": x})[0], expected)


@pytest.mark.parametrize("seed", range(40))
def test_changed_graphs_end_in_a_graph_or_an_error_of_ours(seed: int, tmp_path: Path) -> None:
    """The changes that ``python -m benchmarks.fuzzing`` makes, without its guidance by coverage."""
    graphs = fuzzed_graphs()
    content = graphs.seeds()[seed % len(graphs.seeds())]
    for turn in range(3):
        content = graphs.mutate(content, 1 << 16, 100 * seed + turn)
        path = tmp_path / "net.onnx"
        path.write_bytes(content)
        with contextlib.suppress(GraphError):
            rewrite(load_graph(path))


@functools.cache
def fuzzed_graphs() -> ModuleType:
    """Import the file as it stands: benchmarks is no package of the installed ones."""
    place = Path(__file__).parents[2] / "benchmarks" / "fuzzing" / "fuzzed_graphs.py"
    spec = importlib.util.spec_from_file_location("fuzzed_graphs", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
