"""QLinear operators: each is the real operator between quantizers, and an optimizer's files are judged so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, numpy_helper, parser
from onnxruntime_outputs import run_onnxruntime
from optimized_files import optimized

from normdeploy.graph import Evaluator
from normdeploy.verification import verify
from normdeploy.verification.derivation.side.joined_operators import write_out

Q = "q = QuantizeLinear(x, s, z) "
END = " y = DequantizeLinear(r, t, e)"
OPERATORS = {
    "QLinearAdd": "r = com.microsoft.QLinearAdd(q, s, z, q, s, z, t, e)",
    "QLinearMul": "r = com.microsoft.QLinearMul(q, s, z, q, s, z, t, e)",
    "QLinearLeakyRelu": "r = com.microsoft.QLinearLeakyRelu<alpha=0.2>(q, s, z, t, e)",
    "QLinearSigmoid": "r = com.microsoft.QLinearSigmoid(q, s, z, t, e)",
    "QLinearConcat": "r = com.microsoft.QLinearConcat<axis=2>(t, e, q, s, z, q, s, z)",
    "QLinearAveragePool": "r = com.microsoft.QLinearAveragePool<kernel_shape=[2,2]>(q, s, z, t, e)",
    "QLinearGlobalAveragePool": "r = com.microsoft.QLinearGlobalAveragePool(q, s, z, t, e)",
    "QLinearWhere": "c = Greater(x, s) r = com.microsoft.QLinearWhere(c, q, s, z, q, s, e, t, e)",
    "QLinearConv": "r = QLinearConv<pads=[1,1,1,1]>(q, s, z, w, sw, zw, t, e, b)",
    "QLinearConv, last": "p = Transpose<perm=[0,2,3,1]>(q) "
    "o = com.microsoft.QLinearConv<pads=[1,1,1,1],channels_last=1>(p, s, z, w, sw, zw, t, e, b) "
    "r = Transpose<perm=[0,3,1,2]>(o)",
    "QLinearMatMul": "r = QLinearMatMul(q, s, z, m, s, z, t, e)",
}


def model(body: str, opset: int = 17) -> ModelProto:
    imports = f'["": {opset}, "com.microsoft": 1]'
    proto = parser.parse_model(
        f"<ir_version: 8, opset_import: {imports}> g (float[b,3,4,4] x) => (float[i,j,k,l] y) {{ {body} }}"
    )
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.02), "z": np.uint8(128), "t": np.float32(0.05), "e": np.uint8(100),
        "w": rng.integers(-100, 100, (3, 3, 3, 3)).astype(np.int8), "sw": np.float32([0.01, 0.02, 0.005]),
        "zw": np.zeros(3, np.int8), "b": rng.integers(-500, 500, 3).astype(np.int32),
        "m": rng.integers(0, 255, (4, 4)).astype(np.uint8), "weight": rng.standard_normal((48, 5)).astype(np.float32),
        "probability": np.float32(1 / 255), "nought": np.uint8(0), "flat": np.array([0, -1]),
    }  # fmt: skip
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(constants[n]), n) for n in constants if n in used)
    return proto


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_written_out_is_what_the_operator_means(name: str) -> None:
    proto = model(Q + OPERATORS[name] + END)
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)
    written = ir.from_proto(proto)
    assert write_out(written)
    assert not [node for node in written.graph if node.op_type.startswith("QLinear")]
    have = Evaluator(written).run({"x": x})["y"].numpy()
    np.testing.assert_array_equal(have, Evaluator(ir.from_proto(proto)).run({"x": x})["y"].numpy())
    if "last" not in name:  # its kernel is for a layout that the runtime itself decides on
        want = run_onnxruntime(proto, {"x": x})[0]
        assert np.abs(have - want).max() <= 0.05 * 1.001, "more than a step"
        assert np.mean(np.abs(have - want) > 0.01) < 0.05


HEAD = (
    "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) f = Reshape(d, flat) g = MatMul(f, weight) "
    "h = QuantizeLinear(g, t, e) i = DequantizeLinear(h, t, e) p = Softmax(i) "
    "r = QuantizeLinear(p, probability, nought) o = DequantizeLinear(r, probability, nought) y = Unsqueeze(o, flat)"
)


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_softmax_that_an_optimizer_made_of_quantizers(tmp_path: Path, level: str) -> None:
    """onnxruntime's kernel is a step below the definition here and there, whoever wrote the file."""
    onnx.save(model(HEAD), tmp_path / "own.onnx")
    proto = optimized(tmp_path / "own.onnx", tmp_path / "its.onnx", "extended")
    assert "QLinearSoftmax" in {node.op_type for node in proto.graph.node}
    verdict = verify(tmp_path / "own.onnx", tmp_path / "its.onnx", level=level)
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "pass", verdict.summary()


@pytest.mark.parametrize("what", ["zero", "step", "axis"])
def test_a_softmax_that_is_another_fails(tmp_path: Path, what: str) -> None:
    onnx.save(model(HEAD), tmp_path / "own.onnx")
    proto = optimized(tmp_path / "own.onnx", tmp_path / "its.onnx", "extended")
    (node,) = [node for node in proto.graph.node if node.op_type == "QLinearSoftmax"]
    if what == "axis":
        (attribute,) = [a for a in node.attribute if a.name == "axis"]
        attribute.i = 0
    else:
        array, place = (np.uint8(1), 4) if what == "zero" else (np.float32(0.0505), 1)
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), "other"))
        node.input[place] = "other"
    onnx.save(proto, tmp_path / "wrong.onnx")
    verdict = verify(tmp_path / "own.onnx", tmp_path / "wrong.onnx", level="quick")
    assert verdict.status == "fail", verdict.summary()
