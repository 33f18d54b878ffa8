"""Operators of a file without its weights: what is skipped is not read, and what is damaged has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from normdeploy.onnxfile.outline import read_outline
from normdeploy.onnxfile.without_weights import read_operators

TEXT = """
<ir_version: 10, opset_import: ["": 20, "own": 1]>
g (float[4] x) => (float[4] y)
{ a = Mul (x, w) c = own.twice (a) t = Cast <to = 9> (s) y = If (t) <then_branch = p () => (float[4] u) { u = Neg (c) },
  else_branch = q () => (float[4] v) { v = Abs (c) }> }
<domain: "own", opset_import: ["": 20]> twice (i) => (o) { o = Add (i, i) }
"""


def written(path: Path) -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    weights = {"w": np.arange(4, dtype=np.float32), "s": np.array(1, np.int64)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return model


def test_operators_bodies_and_functions_are_those_of_the_file(tmp_path: Path):
    written(tmp_path / "net.onnx")
    found, whole = read_operators(tmp_path / "net.onnx"), read_outline(tmp_path / "net.onnx").proto
    assert list(found.graph.node) == list(whole.graph.node)
    assert list(found.functions) == list(whole.functions)
    assert (len(whole.graph.initializer), len(found.graph.initializer)) == (2, 0)


def test_a_graph_that_is_written_in_two_parts_is_read_as_one(tmp_path: Path):
    """protobuf merges a message that is there twice."""
    model = written(tmp_path / "net.onnx")
    second = onnx.ModelProto()
    second.graph.node.append(onnx.helper.make_node("Abs", ["y"], ["z"]))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString() + second.SerializeToString())
    assert [node.op_type for node in read_operators(tmp_path / "net.onnx").graph.node][-1] == "Abs"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-3], lambda b: b"\x7f" + b, lambda _: b"no model at all, but some text"]
)
def test_what_is_no_model_has_none(damage, tmp_path: Path):
    path = tmp_path / "net.onnx"
    path.write_bytes(damage(written(path).SerializeToString()))
    assert read_operators(path) is None
