"""Splits that take the way over a sequence become plain Splits."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.graph import Evaluator
from normdeploy.rewrite.weights import EvaluateConstants, FollowSizes


def model(body: str, outputs: str = "float[n,a] y") -> ir.Model:
    found = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,7] x, int64[1] p) => ({outputs}) {{
        one = Constant <value_int = 1> ()
        last = Constant <value_int = -1> ()
        two = Constant <value_int = 3> ()
        sizes = Constant <value_ints = [2, 4, 1]> ()
        {body}
    }}""")
    EvaluateConstants()(found)
    return found


def resolved(found: ir.Model) -> bool:
    return FollowSizes(EvaluateConstants())(found).modified


def operators(found: ir.Model) -> list[str]:
    return [node.op_type for node in found.graph]


X = np.arange(14.0).reshape(2, 7)
P = np.array([1])


@pytest.mark.parametrize(("given", "parts"), [("sizes", [2, 4, 1]), ("two", [3, 3, 1])])
def test_parts_at_constant_positions_are_outputs_of_a_split(given, parts):
    found = model(f"""
        s = SplitToSequence <axis = 1> (x, {given})
        a = SequenceAt (s, one)
        b = SequenceAt (s, last)
        y = Add (a, b)
    """)
    assert resolved(found)
    assert operators(found) == ["Split", "Add"]
    assert [value.name for value in next(iter(found.graph)).outputs][1:] == ["a", "b"]  # what the graph calls the parts
    onnx.checker.check_model(ir.to_proto(found))
    split = np.split(X, np.cumsum(parts)[:-1], axis=1)
    np.testing.assert_array_equal(Evaluator(found).run({"x": X, "p": P})["y"].numpy(), split[1] + split[2])


def test_a_part_that_is_a_graph_output_keeps_its_name():
    found = model(
        "s = SplitToSequence <axis = 1> (x, sizes)\n y = SequenceAt (s, one)\n z = SequenceAt (s, one)",
        "float[n,4] y, float[n,4] z",
    )
    resolved(found)
    assert [value.name for value in found.graph.outputs] == ["y", "z"]
    onnx.checker.check_model(ir.to_proto(found))
    got = Evaluator(found).run({"x": X, "p": P})
    np.testing.assert_array_equal(got["y"].numpy(), X[:, 2:6])
    np.testing.assert_array_equal(got["z"].numpy(), X[:, 2:6])


@pytest.mark.parametrize(
    "body",
    [
        "s = SplitToSequence <axis = 1> (x, sizes)\n i = Squeeze (p)\n a = SequenceAt (s, i)\n y = Relu (a)",
        "s = SplitToSequence <axis = 1> (x, sizes)\n y = ConcatFromSequence <axis = 1> (s)",
        "s = SplitToSequence <axis = 1> (x, p)\n a = SequenceAt (s, one)\n y = Relu (a)",
        "s = SplitToSequence <axis = 1, keepdims = 0> (x)\n a = SequenceAt (s, one)\n y = Unsqueeze (a, p)",
    ],
)
def test_what_is_computed_or_not_only_picked_from_stays(body):
    found = model(body)
    text = operators(found)
    assert not resolved(found)
    assert operators(found) == text


def test_sizes_of_parts_tell_those_of_what_is_made_of_them():
    found = model("""
        s = SplitToSequence <axis = 1> (x, sizes)
        a = SequenceAt (s, one)
        b = SequenceAt (s, last)
        c = Concat <axis = -1> (a, b)
        y = Neg (c)
    """)
    assert resolved(found)
    shapes = {node.op_type: [[str(dim) for dim in part.shape] for part in node.outputs] for node in found.graph}
    assert shapes["Split"] == [["n", "2"], ["n", "4"], ["n", "1"]]
    assert shapes["Concat"] == [["n", "5"]]
