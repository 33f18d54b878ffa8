"""One-step flips on a quantized grid: the work of a runtime's optimizer, told from a wrong file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import normdeploy as nd

OUT, IN = 16, 8


def quantized_conv(path: Path, *, moved: float = 0.0, linear_end: bool = False, integers: bool = False) -> Path:
    """Write x -> Q -> DQ -> Conv(int8 weights, float bias) -> Q -> DQ; ``moved`` steps are added to one bias."""
    rng = np.random.default_rng(0)
    bias = rng.normal(size=OUT).astype(np.float32)
    bias[3] += np.float32(moved * 0.3)
    constants = {
        "w": rng.integers(-127, 128, (OUT, IN, 3, 3)).astype(np.int8),
        "sx": np.float32(0.02),
        "zero": np.int8(0),
        "sw": (rng.uniform(0.5, 1.5, OUT) * 0.01).astype(np.float32),
        "zw": np.zeros(OUT, np.int8),
        "sy": np.float32(0.3),
        "b": bias,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "b"], ["y" if linear_end else "c"], pads=[1, 1, 1, 1]),
    ]
    if not linear_end:
        nodes.append(helper.make_node("QuantizeLinear", ["c", "sy", "zero"], ["y" if integers else "cq"]))
    if not linear_end and not integers:
        nodes.append(helper.make_node("DequantizeLinear", ["cq", "sy", "zero"], ["y"]))
    kind = TensorProto.INT8 if integers else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", IN, 9, 9])],
        [helper.make_tensor_value_info("y", kind, ["n", OUT, 9, 9])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


@pytest.mark.parametrize("integers", [False, True])
def test_flips_that_an_optimizer_makes_are_no_fault_of_the_file(tmp_path: Path, integers: bool):
    path = quantized_conv(tmp_path / "q.onnx", integers=integers)
    verdict = nd.verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    [check] = [check for check in verdict.checks if check.name == "grid"]
    assert check.measured["optimizers"] == ["WeightBiasQuantization"]
    assert 0 < check.measured["flips"] <= 0.01 * check.measured["size"]
    assert "disabled_optimizers=['WeightBiasQuantization'] avoids it" in check.detail


@pytest.mark.parametrize("moved", [0.05, 0.5, 1.0])
def test_a_file_that_moves_elements_itself_fails(tmp_path: Path, moved: float):
    right = quantized_conv(tmp_path / "q.onnx")
    wrong = quantized_conv(tmp_path / "wrong.onnx", moved=moved)
    assert nd.verify(right, wrong).status == "fail"


def test_without_a_grid_the_same_rounding_is_judged_as_any_other(tmp_path: Path):
    path = quantized_conv(tmp_path / "q.onnx", linear_end=True)
    verdict = nd.verify(path, path)
    assert not [check for check in verdict.checks if check.name == "grid"]
