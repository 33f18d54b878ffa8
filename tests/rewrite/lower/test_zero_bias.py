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


def summed(body: str, results: str, addend: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[2,3,4] x, float[2,4,5] z) => ({results}) {{ {body} }}'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(addend.astype(np.float32), "mask"))
    weight = np.random.default_rng(2).normal(size=(4, 5))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float32), "w"))
    return ir.from_proto(proto)


SUMS = {
    "behind": ("p = MatMul (x, z) s = Add (p, mask) y = Softmax (s)", "float[2,3,5] y"),
    "in front": ("p = MatMul (x, z) s = Add (mask, p) y = Softmax (s)", "float[2,3,5] y"),
    "a layer's": ("p = MatMul (x, w) s = Add (p, mask) y = Softmax (s)", "float[2,3,5] y"),
    "given out": ("p = MatMul (x, z) y = Add (p, mask)", "float[2,3,5] y"),
    "read twice": (
        "p = MatMul (x, z) s = Add (p, mask) y = Softmax (s) q = Relu (p)",
        "float[2,3,5] y, float[2,3,5] q",
    ),
}


@pytest.mark.parametrize("case", SUMS)
@pytest.mark.parametrize("shape", [(5,), (2, 1, 5), (1, 1, 1)])
@pytest.mark.parametrize("last", [0.0, 1e-30])
def test_zeros_added_to_a_product_leave(case: str, shape: tuple[int, ...], last: float):
    addend = np.zeros(shape)
    addend[..., -1] = last
    source = summed(*SUMS[case], addend)
    result = rewrite(source).model
    draw = np.random.default_rng(3)
    feeds = {"x": draw.normal(size=(2, 3, 4)), "z": draw.normal(size=(2, 4, 5))}
    old, new = (Evaluator(item).run(feeds) for item in (source, result))
    assert list(old) == list(new)
    for name in old:
        np.testing.assert_allclose(old[name].numpy(), new[name].numpy(), rtol=1e-12)
    if last == 0:
        assert "Add" not in [node.op_type for node in result.graph]
        assert "mask" not in result.graph.initializers


def test_zeros_that_make_more_of_a_product_stay():
    body = "p = MatMul (x, z) s = Add (p, mask) y = Softmax (s)"
    result = rewrite(summed(body, "float[3,2,3,5] y", np.zeros((3, 1, 1, 1)))).model
    assert [node.op_type for node in result.graph] == ["MatMul", "Add", "Softmax"]


def test_both_names_stay_where_the_product_and_the_sum_are_given_out():
    source = summed("p = MatMul (x, z) y = Add (p, mask)", "float[2,3,5] y, float[2,3,5] p", np.zeros((2, 1, 5)))
    result = rewrite(source).model
    assert [value.name for value in result.graph.outputs] == ["y", "p"]
    onnx.checker.check_model(ir.to_proto(result))
