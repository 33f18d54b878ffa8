"""Biases of zeros leave; every other one stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

CASES = {
    "Conv": ("float[2,3,5,5] x", "float[3,3,2,2] w, float[3] b", "y = Conv (x, w, b)", "float[2,3,4,4] y"),
    "ConvTranspose": (
        "float[2,3,5,5] x",
        "float[3,3,2,2] w, float[3] b",
        "y = ConvTranspose (x, w, b)",
        "float[2,3,6,6] y",
    ),
    "Gemm": ("float[2,3] x", "float[3,3] w, float[3] b", "y = Gemm <beta = 2.0> (x, w, b)", "float[2,3] y"),
}


def model(kind: str, bias: np.ndarray) -> ir.Model:
    x, _, body, y = CASES[kind]
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g ({x}) => ({y}) {{ {body} }}')
    weight = np.random.default_rng(0).normal(size=(3, 3) if kind == "Gemm" else (3, 3, 2, 2)).astype(np.float32)
    for name, array in (("w", weight), ("b", bias.astype(np.float32))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("last", [0.0, 1e-30])
def test_only_zeros_leave(kind: str, last: float):
    source = model(kind, np.array([0.0, 0.0, last]))
    result = rewrite(source).model
    (node,) = result.graph
    assert (len(node.inputs), sorted(result.graph.initializers)) == ((2, ["w"]) if last == 0 else (3, ["b", "w"]))
    shape = [int(n) for n in source.graph.inputs[0].shape]
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    old, new = (Evaluator(item).run({"x": x})["y"].numpy() for item in (source, result))
    np.testing.assert_array_equal(old, new)
