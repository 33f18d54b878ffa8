"""Operators that quantize their own results (QLinearMatMul, QGemm): runs without their rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.verification.record.answers import Killer
from normdeploy.verification.sides.grids import unquantized, unrounded

IN, OUT = 6, 5
MICROSOFT = "com.microsoft"


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "sx": np.float32(0.02),
        "zx": np.uint8(120),
        "w": rng.integers(-127, 128, (IN, OUT)).astype(np.int8),
        "sw": np.float32(0.01),
        "zw": np.int8(0),
        "b": rng.integers(-3000, 3000, OUT).astype(np.int32),
        "sy": np.float32(0.05),
        "zy": np.uint8(110),
        "g": rng.uniform(0.5, 1.5, OUT).astype(np.float32),
        "s": rng.normal(size=OUT).astype(np.float32),
        "m": rng.normal(size=OUT).astype(np.float32),
        "v": rng.uniform(0.5, 2, OUT).astype(np.float32),
        "se": np.float32(0.1),
        "ze": np.uint8(128),
    }


def file(path: Path, *, gemm: bool) -> Path:
    """Write x -> Q -> a layer on integers -> DQ -> BatchNormalization -> Q -> DQ."""
    layer = ["xq", "sx", "zx", "w", "sw", "zw"]
    if gemm:
        made = helper.make_node("QGemm", [*layer, "b", "sy", "zy"], ["yq"], domain=MICROSOFT)
    else:
        made = helper.make_node("QLinearMatMul", [*layer, "sy", "zy"], ["yq"])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        made,
        helper.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]),
        helper.make_node("BatchNormalization", ["y", "g", "s", "m", "v"], ["n"]),
        helper.make_node("QuantizeLinear", ["n", "se", "ze"], ["nq"]),
        helper.make_node("DequantizeLinear", ["nq", "se", "ze"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", IN])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", OUT])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values().items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize("gemm", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_without_rounding_the_layer_is_arithmetic(tmp_path: Path, gemm: bool, cut: bool):
    """The whole graph in numpy's float64, no rounding in it."""
    evaluator = Evaluator(ir.load(file(tmp_path / "q.onnx", gemm=gemm)))
    x = np.random.default_rng(0).normal(size=(40, IN)) * 3
    stand_ins = unrounded(evaluator) if cut else unquantized(evaluator)
    [found] = evaluator.run({"x": x}, stand_ins=stand_ins).values()
    c = {name: np.asarray(value, np.float64) for name, value in values().items()}

    def quantized(real: np.ndarray, step: np.ndarray, zero: np.ndarray) -> np.ndarray:
        whole = real / step + zero
        return ((np.clip(whole, 0, 255) if cut else whole) - zero) * step

    y = quantized(x, c["sx"], c["zx"]) @ (c["w"] * c["sw"])
    y = y + c["b"] * c["sx"] * c["sw"] if gemm else y
    y = quantized(y, c["sy"], c["zy"])
    n = (y - c["m"]) / np.sqrt(c["v"] + 1e-5) * c["g"] + c["s"]
    np.testing.assert_allclose(found.numpy(), quantized(n, c["se"], c["ze"]), rtol=0, atol=1e-9)
    assert (np.abs(found.numpy() / c["se"] - np.round(found.numpy() / c["se"])) > 1e-3).mean() > 0.5  # none rounded


@pytest.mark.parametrize("gemm", [True, False])
def test_a_norm_between_two_quantizers_is_exercised_though_no_output_moves(tmp_path: Path, gemm: bool):
    path = file(tmp_path / "q.onnx", gemm=gemm)
    verdict = nd.verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    mutants = {mutant.name: mutant for site in verdict.sites for mutant in site.mutants}
    assert all(mutant.killed for mutant in mutants.values())
    assert {mutant.by for mutant in mutants.values() if "epsilon" in mutant.name} == {Killer.FLOAT64}


@pytest.mark.parametrize("zero", [0, 255, 110])
@pytest.mark.parametrize("gemm", [True, False])
def test_a_type_that_begins_at_zero_leaves_out_a_sign_without_its_rounding_too(tmp_path: Path, zero: int, gemm: bool):
    """Quantizers take a Relu away where uint8 begins at zero: what quantization costs is not what that Relu does."""
    model = onnx.load(file(tmp_path / "q.onnx", gemm=gemm))
    places = ("zy", "ze")
    for item in model.graph.initializer:
        if item.name in places:
            item.CopyFrom(numpy_helper.from_array(np.asarray(np.uint8(zero)), item.name))
    onnx.save(model, tmp_path / "cut.onnx")
    evaluator = Evaluator(ir.load(tmp_path / "cut.onnx"))
    x = np.random.default_rng(0).normal(size=(40, IN)) * 3
    [found] = evaluator.run({"x": x}, stand_ins=unquantized(evaluator)).values()
    c = {name: np.asarray(value, np.float64) for name, value in values().items()}
    sides = {0: (0, np.inf), 255: (-np.inf, 0), 110: (-np.inf, np.inf)}[zero]
    y = x @ (c["w"] * c["sw"])
    y = np.clip(y + c["b"] * c["sx"] * c["sw"] if gemm else y, *sides)
    n = (y - c["m"]) / np.sqrt(c["v"] + 1e-5) * c["g"] + c["s"]
    np.testing.assert_allclose(found.numpy(), np.clip(n, *sides), rtol=0, atol=1e-9)
    assert (found == 0).any() == (zero != 110)
