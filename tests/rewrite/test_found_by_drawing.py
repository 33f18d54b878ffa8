"""Graphs found by drawing operators with all their attributes: each is folded, and computes what it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import normdeploy as nd

CASES = {
    "scale 0 behind a product of one value with its transposed": (
        22,
        "float[batch,5,6] x, float[5,3] w",
        "<float[5,3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[1,5,1] a = {1,2,3,4,5}, float[3,1] z = {0,0,0}>",
        'm = Mul (x, a) e = Einsum <equation = "bij,ik->bkj"> (m, w) t = Transpose <perm = [0, 2, 1]> (e) '
        "p = MatMul (e, t) y = Mul (p, z)",
    ),
    "one channel of scale 0 behind a Tile": (
        21,
        "float[batch,6,3] x",
        "<float[2,3,1] w = {1,-2,3,4,5,-6}, int64[3] once = {1,1,1}, "
        "float[2] g = {0,0.9}, float[2] b = {-1.8,-0.2}, float[2] m = {-0.1,0.3}, float[2] v = {2,1}>",
        "c = Conv <group = 2> (x, w) t = Tile (c, once) y = BatchNormalization (t, g, b, m, v)",
    ),
    "scale 0 behind the sum of a value with itself, that another could have written": (
        7,
        "float[1,2,4] x, float[2,1,2] w",
        "<float[2,1,2] w = {1,-2,3,4}, float[2] b = {0,0}, float[1,1,1] z = {0}>",
        "c = Conv <group = 2> (x, w, b) s = Add (c, c) y = Mul (s, z)",
    ),
    "a map in front of a Slice that leaves nothing": (
        18,
        "float[3,2,3,5] x",
        "<float[2,1,1] a = {2,3}, int64[1] two = {2}, int64[1] one = {1}>",
        "m = Mul (x, a) y = Slice (m, two, two, two, one)",
    ),
    "a map behind the mirrored columns of nothing": (
        18,
        "float[batch,2,3] x",
        "<int64[1] one = {1}, int64[1] two = {2}, int64[2] turned = {1,0}, float[2,1] a = {2,3}>",
        "s = Slice (x, one, one, two) g = Gather <axis = 1> (s, turned) y = Mul (g, a)",
    ),
    "a bias in front of an InstanceNormalization beside a weight that is given": (
        17,
        "float[batch,2,3] x, float[2,2,1] w",
        "<float[2,2,1] w = {1,-2,3,4}, float[2] b = {1,2}, float[2] g = {1,2}, float[2] t = {0.5,-1}>",
        "c = Conv (x, w, b) y = InstanceNormalization (c, g, t)",
    ),
    "a Pad that repeats the edge, with a number": (
        8,
        "float[batch,2,2] x",
        "<float[2,1] a = {2,3}>",
        'm = Mul (x, a) y = Pad <mode = "edge", pads = [0, 0, 1, 0, 0, 2], value = 1.0> (m)',
    ),
    "a Pad that mirrors, with a number": (
        10,
        "float[batch,2,3] x",
        "<float[2,1] a = {2,3}>",
        'm = Mul (x, a) y = Pad <mode = "reflect", pads = [0, 0, 1, 0, 0, 2], value = -2.0> (m)',
    ),
    "a small factor of a product of nothing": (
        18,
        "float[batch,2,0,5] x",
        "<float[5,3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[2,1,1] c = {1,2}>",
        "m = Mul (x, x) s = Mean (x, m, m) t = MatMul (s, w) y = Sub (t, c)",
    ),
    "a map that varies along an axis of nothing": (
        18,
        "float[2,4,0,3] x",
        "<int64[1] last = {3}, float[1,1] b = {4}>",
        "i = Shape (x) e = ConstantOfShape (i) m = Sub (x, e) y = Mul (m, b)",
    ),
    "a norm of nothing": (
        18,
        "float[3,0,4] x",
        "<float[4] g = {1,2,3,4}, float[4] a = {2,3,4,5}, float[4,1] w = {1,2,3,4}>",
        "m = Mul (x, a) n = LayerNormalization (m, g) y = MatMul (n, w)",
    ),
    "a BatchNormalization of no channels": (
        18,
        "float[3,0,4] x",
        "<int64[1] none = {0}, float[4] a = {2,3,4,5}>",
        "s = ConstantOfShape (none) n = BatchNormalization (x, s, s, s, s) y = Mul (n, a)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_drawn_graph_is_folded_and_computes_what_it_did(case: str, tmp_path: Path) -> None:
    opset, inputs, constants, nodes = CASES[case]
    header = f'<ir_version: {3 if opset < 9 else 10}, opset_import: ["" : {opset}]>'
    model = parser.parse_model(f"{header} g ({inputs}) => (float[] y) {constants} {{ {nodes} }}")
    onnx.save(model, tmp_path / "net.onnx")
    nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx", verify=False)
    rng = np.random.default_rng(0)
    shape = [
        dim.dim_value if dim.HasField("dim_value") else 2 for dim in model.graph.input[0].type.tensor_type.shape.dim
    ]
    feeds = {"x": rng.normal(size=shape).astype(np.float32)}
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    (found,) = ReferenceEvaluator(onnx.load(tmp_path / "folded.onnx")).run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, strict=True)
