"""Functions that a model brings along: written where they are called, or refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

CALL = '<ir_version: 10, opset_import: ["": 15, "l": 1]> net (float[2,3] x) => (float[2,3] y) { y = l.F (x) }\n'


def function(text: str, opset: int = 15) -> str:
    return f'<domain: "l", opset_import: ["": {opset}, "l": 1]> {text}\n'


RELU = function("F (a) => (b) { b = Relu (a) }")
MEAN = "G (a) => (b) { i = Constant <value = int64[1] {1}> () b = ReduceMean (a, i) }"


@pytest.mark.parametrize(
    "unused",
    [
        "G (a) => (b) { b = ReduceMean <axes = [1]> (a) }",
        "G (a) => (b) { b = l.G (a) }",
        "G (a) => (b, b) { b = Abs (a) }",
    ],
    ids=["whose operator has another form in the set that is raised to", "that calls itself", "that is broken"],
)
def test_a_function_that_nothing_calls_leaves(unused):
    found = ir.to_proto(rewrite(ir.from_proto(parser.parse_model(CALL + RELU + function(unused)))).model)
    onnx.checker.check_model(found, full_check=True)
    assert not found.functions
    assert [node.op_type for node in found.graph.node] == ["Relu"]


def test_a_function_of_another_operator_set_whose_operators_are_the_same():
    inner = function("G (a) => (b) { b = Clip (a) }", opset=14)
    proto = parser.parse_model(CALL + function("F (a) => (b) { c = l.G (a) b = Relu (c) }", opset=14) + inner)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for model in (ir.from_proto(proto), rewrite(ir.from_proto(proto)).model):
        np.testing.assert_array_equal(Evaluator(model).run({"x": x})["y"].numpy(), expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CALL + function("F (a) => (b) { b = l.F (a) }"), "function 'F' calls itself"),
        (
            CALL + function("F (a) => (b) { b = l.G (a) }") + function("G (a) => (b) { b = l.F (a) }"),
            "function 'F' calls itself",
        ),
        (CALL.replace("(x) }", "(x, x) }") + RELU, "calls function 'F' with 2 inputs; expected at most 1"),
        (CALL.replace("y = ", "y, z = ") + RELU, "calls function 'F' with 2 outputs; expected at most 1"),
        (
            CALL + function(MEAN.replace("G", "F"), opset=18),
            "function 'F' is written in operator set 18 and the model in 15, where ReduceMean has another form",
        ),
    ],
    ids=["circle", "larger circle", "inputs", "outputs", "another form"],
)
def test_functions_that_fit_no_call_are_named(text, said):
    model = ir.from_proto(parser.parse_model(text))
    for step in (rewrite, Evaluator):
        with pytest.raises(GraphError, match=said):
            step(model)
