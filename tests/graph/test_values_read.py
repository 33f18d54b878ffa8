"""What an operator with bodies reads: its own inputs, and what its bodies read from around them."""

import onnx
import onnx_ir as ir

from normdeploy.graph.walk import values_read

TEXT = """<ir_version: 8, opset_import: ["": 18]> g (bool t, float[2] x, float[2] z) => (float[2] y)
<float[2] w = {1, 2}> {
    a = Relu (x)
    y = If (t) <
        then_branch = one () => (float[2] r) { r = Add (a, w) },
        else_branch = other () => (float[2] q) { u = Abs (z) q = If (t) <
            then_branch = inner () => (float[2] s) { s = Sub (z, u) },
            else_branch = last () => (float[2] v) { v = Identity (u) }
        > }
    >
}"""


def test_bodies_read_around_them():
    graph = ir.from_proto(onnx.parser.parse_model(TEXT)).graph
    branch = next(node for node in graph if node.op_type == "If")
    assert {value.name for value in values_read(branch)} == {"t", "a", "w", "z"}
