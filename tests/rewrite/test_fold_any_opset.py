"""Folding a graph of any operator set gives the same folds, and keeps names, metadata and dynamic dimensions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs, numpy_helper, parser

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

BODY = """
    [first] c = Conv <pads = [1, 1, 1, 1]> (x, w)
    [norm] n = BatchNormalization (c, g, b, m, v)
    [act] r = Relu (n)
    [second] c2 = Conv (r, w2)
    [norm2] n2 = BatchNormalization (c2, g, b, m, v)
    [scale] k = Mul (n2, a)
    [pool] p = GlobalAveragePool (k)
    [flat] f = Flatten (p)
    [fc] l = Gemm <transB = 1, beta = 0.5> (f, d, e)
    [soft] y = Softmax <axis = 1> (l)
"""


def network(version: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "g": (8,), "b": (8,), "m": (8,), "v": (8,), "a": (1, 8, 1, 1)}
    shapes |= {"d": (5, 8), "e": (5,)}
    old = version < 9  # where every initializer had to be listed among the inputs
    listed = "".join(f", float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items()) if old else ""
    proto = parser.parse_model(
        f'<ir_version: {3 if old else 8}, opset_import: ["" : {version}]> '
        f"net (float[batch,3,h,9] x{listed}) => (float[batch,5] y) {{ {BODY} }}"
    )
    for name, shape in shapes.items():
        array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        array = np.abs(array) + 0.5 if name in "gva" else array
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    proto.metadata_props.add(key="author", value="someone")
    proto.producer_name, proto.doc_string = "another tool", "a note"
    return proto


@pytest.mark.parametrize("version", [7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 23, defs.onnx_opset_version()])
def test_every_operator_set_folds_the_same(version):
    proto = network(version)
    onnx.checker.check_model(proto)
    model = ir.from_proto(proto)
    result = rewrite(model)
    assert [node.op_type for node in result.model.graph] == [
        "Conv", "Relu", "Conv", "GlobalAveragePool", "Flatten", "Gemm", "Softmax",
    ]  # fmt: skip
    assert [node.name for node in result.model.graph] == ["first", "act", "second", "pool", "flat", "fc", "soft"]
    assert [(row.where, row.action) for row in result.ledger] == [
        ("norm", "folded"), ("norm2", "folded"), ("scale", "folded"),
    ]  # fmt: skip
    assert [(value.name, str(value.shape)) for value in result.model.graph.inputs] == [("x", "[batch,3,h,9]")]
    assert [(value.name, str(value.shape)) for value in result.model.graph.outputs] == [("y", "[batch,5]")]
    assert result.model.metadata_props["author"] == "someone"
    assert (result.model.producer_name, result.model.doc_string) == ("another tool", "a note")
    assert {"w", "w2", "d", "e"} <= set(result.model.graph.initializers)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 7, 9)).astype(np.float32)}
    expected, got = (Evaluator(graph).run(feeds)["y"] for graph in (model, result.model))
    assert float((got - expected).abs().max()) <= 1e-12
