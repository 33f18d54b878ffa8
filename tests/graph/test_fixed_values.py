from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.fixed_values import fixed_nodes

TEXT = """<ir_version: 10, opset_import: ["": 20]> g (float[n, 3] x) => (float[n, 3] y)
    <float[3] w = {1, 2, 3}> {
    a = Exp(w) b = Constant<value = float {2.0}>() c = Mul(a, b) size = Shape(x) part = Expand(c, size)
    noise = RandomNormal<shape = [3]>() d = Add(c, noise) e = Mul(part, x) y = Add(e, d)
}"""


def test_what_no_input_changes():
    graph = ir.from_onnx_text(TEXT).graph
    found = fixed_nodes(graph)
    assert {node.outputs[0].name for node in found.by_constants} == {"a", "b", "c"}
    assert {node.outputs[0].name for node in found.by_sizes} == {"a", "b", "c", "size", "part"}
