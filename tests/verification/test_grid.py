"""One-step flips on a quantized grid: the work of a runtime's optimizer, told from a wrong file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, load_graph, save_graph
from normdeploy.ort.byte_products import EXACT_PRODUCTS
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.checks import grid
from normdeploy.verification.judging import flips
from normdeploy.verification.judging.parts import held_in_parts
from normdeploy.verification.sides.biases import rounded_biases
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subgraph import subgraph
from normdeploy.verification.sides.subject import Subject

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


def classifier(path: Path, seed: int, domain: str = "") -> Path:
    """Write a quantized layer with a quantized softmax behind it, of eight numbers to four.

    Args:
        domain: of its quantizers: onnxruntime's tools write those of com.microsoft for types that an opset lacks.
    """
    rng = np.random.default_rng(seed)
    constants = {
        "sx": np.float32(0.02),
        "zero": np.int8(0),
        "w": rng.integers(-127, 128, (8, 4)).astype(np.int8),
        "sw": np.float32(0.004),
        "b": rng.integers(-20000, 20000, 4).astype(np.int32),
        "sb": np.float32(0.02) * np.float32(0.004),
        "zb": np.int32(0),
        "sl": np.float32(0.02),
        "sy": np.float32(1 / 255),
        "zy": np.int8(-128),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "sw", "zero"], ["wd"]),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bd"]),
        helper.make_node("QuantizeLinear", ["x", "sx", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zero"], ["xd"]),
        helper.make_node("Gemm", ["xd", "wd", "bd"], ["l"]),
        helper.make_node("QuantizeLinear", ["l", "sl", "zero"], ["lq"]),
        helper.make_node("DequantizeLinear", ["lq", "sl", "zero"], ["ld"]),
        helper.make_node("Softmax", ["ld"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "sy", "zy"], ["pq"]),
        helper.make_node("DequantizeLinear", ["pq", "sy", "zy"], ["y"]),
    ]
    for node in nodes:
        node.domain = domain if "Quantize" in node.op_type or "Dequantize" in node.op_type else ""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    return path


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("seed", [21, 22])
def test_a_few_values_whose_simulated_flips_undo_each_other(tmp_path: Path, seed: int, domain: str):
    """onnxruntime's QLinearSoftmax is a step below; turned at every quantizer, these four end where they were (21)."""
    path = classifier(tmp_path / "q.onnx", seed, domain)
    verdict = nd.verify(path, path, level="quick")
    assert verdict.status == "pass", verdict.summary()


class Residual(nn.Module):
    """A norm of a residual, whose rows no input makes nearly constant, and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 5)
        self.last = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.last(self.norm(x + self.inner(x)))).softmax(-1)


class Rows(CalibrationDataReader):
    def __init__(self, name: str) -> None:
        rng = np.random.default_rng(0)
        self.rows = [{name: rng.normal(size=(2, 8)).astype(np.float32)} for _ in range(8)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.rows.pop() if self.rows else None


def test_flips_behind_a_norm_that_is_fed_directly(tmp_path: Path):
    torch.manual_seed(0)
    plain, path = tmp_path / "plain.onnx", tmp_path / "q.onnx"
    nd.export(Residual().eval(), torch.randn(2, 8), plain, verify=False)
    int8 = QuantType.QInt8
    quantize_static(
        str(plain), str(path), Rows("x"), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=int8,
        weight_type=int8,
    )  # fmt: skip
    verdict = nd.verify(path, path, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert any(check.name == "site" for check in verdict.checks)
    assert any(check.name == "grid" for check in verdict.checks)


def test_a_part_of_a_file_has_its_weights_stored_in_integers(tmp_path: Path):
    model = ir.load(classifier(tmp_path / "q.onnx", 0))
    nodes = {node.op_type: node for node in model.graph}
    x = np.ones((2, 8), np.float32)
    part = subgraph(model, [nodes["Gemm"]], ["l"], {"xd": x, "l": np.ones((2, 4), np.float32)})
    assert [value.name for value in part.graph.inputs] == ["xd"]
    stored = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    wanted = x @ (stored["w"] * np.float64(stored["sw"])) + stored["b"] * np.float64(stored["sb"])
    np.testing.assert_allclose(Evaluator(part).run({"xd": x})["l"].numpy(), wanted, rtol=1e-12)
    side = Subject(tmp_path / "q.onnx")
    setting = Setting()
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)}
    found = held_in_parts(side, feeds, side.run(feeds, setting), setting, seed=0)
    assert "cannot be cut" not in found.why, found


def test_a_runtime_that_rounds_biases_computes_what_float64_makes_of_rounded_biases(tmp_path: Path):
    path = quantized_conv(tmp_path / "q.onnx")
    x = np.random.default_rng(5).normal(size=(200, IN, 9, 9)).astype(np.float32)
    options = ort.SessionOptions()
    options.add_session_config_entry(*EXACT_PRODUCTS)
    [ran] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    evaluator = Evaluator(ir.load(path))
    own = evaluator.run({"x": x})["y"].numpy()
    rounded = evaluator.run({"x": x}, stand_ins=rounded_biases(evaluator))["y"].numpy()
    off = [np.count_nonzero(np.abs(ran - found) > 0.1) for found in (own, rounded)]
    assert off[0] > 20
    assert off[1] <= 1, off


def test_products_of_the_whole_range_of_bytes_are_exact_on_every_processor(tmp_path: Path):
    """Where uint8 and int8 are multiplied in pairs that are added in 16 bits, a plain session is off by many steps."""
    path = quantized_conv(tmp_path / "q.onnx")
    x = np.full((2, IN, 9, 9), 2.54, np.float32)  # the grid's end: 127
    x[1] *= -1
    want = Evaluator(ir.load(path)).run({"x": x})["y"].numpy()
    assert np.abs(nd.load(path)(x) - want).max() < 0.31  # a step: a rounded bias may turn an element
    verdict = nd.verify(path, path)
    assert [note for note in verdict.not_checked if "session.x64quantprecision=1" in note]


def test_biases_are_rounded_to_steps_of_the_input_times_the_weight(tmp_path: Path):
    model = ir.load(quantized_conv(tmp_path / "q.onnx", linear_end=True))
    evaluator = Evaluator(model)
    x = np.zeros((1, IN, 9, 9))
    found = evaluator.run({"x": x}, stand_ins=rounded_biases(evaluator))["y"].numpy()
    stored = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    step = np.float64(stored["sx"]) * stored["sw"].astype(np.float64)
    np.testing.assert_allclose(found[0, :, 4, 4], np.round(stored["b"] / step) * step, rtol=0, atol=1e-9)
    assert np.abs(found[0, :, 4, 4] - stored["b"]).max() > 1e-6


@pytest.mark.parametrize("integers", [False, True])
def test_flips_that_an_optimizer_makes_are_no_fault_of_the_file(tmp_path: Path, integers: bool):
    path = quantized_conv(tmp_path / "q.onnx", integers=integers)
    verdict = nd.verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    [check] = [check for check in verdict.checks if check.name == "grid"]
    assert check.measured.optimizers == ("WeightBiasQuantization",)
    assert 0 < check.measured.flips <= 0.01 * check.measured.size
    assert "disabled_optimizers=['WeightBiasQuantization'] avoids it" in check.detail


@pytest.mark.parametrize("moved", [0.05, pytest.param(0.5, marks=pytest.mark.slow), 1.0])  # one between the two
def test_a_file_that_moves_elements_itself_fails(tmp_path: Path, moved: float):
    right = quantized_conv(tmp_path / "q.onnx")
    wrong = quantized_conv(tmp_path / "wrong.onnx", moved=moved)
    assert nd.verify(right, wrong, level="quick").status == "fail"


def test_damage_moves_further_than_flips_may_whatever_explains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Even if an optimizer could be blamed for it: the factor alone refuses, and is what refuses."""
    right = quantized_conv(tmp_path / "q.onnx")
    wrong = quantized_conv(tmp_path / "wrong.onnx", moved=5.0)
    monkeypatch.setattr(grid, "explaining_optimizers", lambda *_: ("SomeFusion",))
    refused = nd.verify(right, wrong, level="quick")
    assert not [check for check in refused.checks if check.name == "grid"], refused.summary()
    assert [check for check in refused.checks if (check.name, check.status) == ("rounding", "fail")]
    allowed = flips.FEW
    monkeypatch.setattr(flips, "FEW", float("inf"))
    excused = nd.verify(right, wrong, level="quick")
    [check] = [check for check in excused.checks if check.name == "grid"]
    assert check.status == "note"
    assert check.measured.ratio > allowed
    monkeypatch.undo()
    [own] = [check for check in nd.verify(right, right, level="quick").checks if check.name == "grid"]
    assert own.measured.ratio < allowed


def test_without_a_grid_the_same_rounding_is_judged_as_any_other(tmp_path: Path):
    path = quantized_conv(tmp_path / "q.onnx", linear_end=True)
    verdict = nd.verify(path, path, level="quick")
    assert not [check for check in verdict.checks if check.name == "grid"]


@pytest.mark.parametrize(("whole", "relu"), [(False, True), (True, True), (True, False)])
def test_a_norm_between_an_integer_convolution_and_its_quantization_is_folded_and_proven(
    tmp_path: Path, whole: bool, relu: bool
):
    """With a bias of floats, or of whole steps in int32, which a shift of broken ones makes one of floats."""
    path = quantized_conv(tmp_path / "q.onnx")
    proto = onnx.load(str(path))
    if whole:
        stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        step = numpy_helper.to_array(stored["sx"]) * numpy_helper.to_array(stored["sw"])
        steps = np.rint(numpy_helper.to_array(stored["b"]) / step).astype(np.int32)
        proto.graph.initializer.remove(stored["b"])
        proto.graph.initializer.extend([numpy_helper.from_array(steps, "bq"), numpy_helper.from_array(step, "sb")])
        proto.graph.node.insert(0, helper.make_node("DequantizeLinear", ["bq", "sb"], ["b"], axis=0))
    rng = np.random.default_rng(1)
    place = next(at for at, node in enumerate(proto.graph.node) if node.op_type == "Conv")
    proto.graph.node[place].output[0] = "conv"
    for offset, node in enumerate(
        [
            helper.make_node("BatchNormalization", ["conv", "g", "s", "m", "v"], ["norm"]),
            helper.make_node("Relu" if relu else "Identity", ["norm"], ["c"]),
        ]
    ):
        proto.graph.node.insert(place + 1 + offset, node)
    values = {"g": rng.uniform(0.5, 1.5, OUT), "s": rng.normal(size=OUT), "m": rng.normal(size=OUT)}
    values["v"] = rng.uniform(0.5, 2, OUT)
    for name, value in values.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.save(proto, str(path))
    result = nd.fold(path, tmp_path / "folded.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    # Most elements are 0 behind the Relu, which makes no tie of the others
    assert not [note for note in result.verdict.not_checked if "decisions" in note], result.verdict.summary()
    saved = onnx.load(str(tmp_path / "folded.onnx"))
    assert "BatchNormalization" not in {node.op_type for node in saved.graph.node}
    weights = next(t for t in saved.graph.initializer if len(t.dims) == 4)
    assert weights.data_type == TensorProto.INT8
    [row] = result.ledger
    assert row.action == "folded"
    assert ("a runtime that rounds it to such steps moves it by at most 0.4" in row.reason) == whole, row.reason
    conv = next(node for node in saved.graph.node if node.op_type == "Conv")
    assert next(t for t in saved.graph.initializer if t.name == conv.input[2]).data_type == TensorProto.FLOAT
    _assert_the_runtime_rounds_the_bias(tmp_path / "folded.onnx", path, values, relu=relu)


def _assert_the_runtime_rounds_the_bias(folded: Path, source: Path, norm: dict[str, np.ndarray], *, relu: bool) -> None:
    """Check the one rounding that the form prescribes: the bias becomes round(b / (s_x s_w)), half to even."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.add_session_config_entry(*EXACT_PRODUCTS)
    options.optimized_model_filepath = str(folded.with_name("optimized.onnx"))
    ort.InferenceSession(str(folded), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(options.optimized_model_filepath)
    kinds = {node.op_type for node in optimized.graph.node}
    assert ("QLinearConv" in kinds) == (not relu)  # onnxruntime computes Relu in floats where 0 is no end of the grid
    (found,) = [
        numpy_helper.to_array(t)
        for t in optimized.graph.initializer
        if t.data_type == TensorProto.INT32 and list(t.dims) == [OUT]
    ]
    first = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(str(source)).graph.initializer}
    step = first["sx"] * first["sw"]
    before = first["bq"] * first["sb"] if "bq" in first else first["b"]
    gamma, beta, mean, variance = (norm[name].astype(np.float32).astype(np.float64) for name in "gsmv")
    scale = gamma / np.sqrt(variance + 1e-5)
    exact = ((before - mean) * scale + beta) / (step * np.abs(scale))
    clear = np.abs(exact - np.floor(exact) - 0.5) > 1e-2  # what float32 stores of it may lie on a tie's other side
    assert clear.sum() > OUT / 2
    np.testing.assert_array_equal(found[clear], np.rint(exact[clear]))


def test_a_narrow_range_and_a_reshape_leave_the_grid_what_it_is(tmp_path: Path):
    path = quantized_conv(tmp_path / "q.onnx")
    model = onnx.load(path)
    last = model.graph.node[-1]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in {"low": np.int8(-120), "high": np.int8(120), "shape": np.array([0, OUT, -1])}.items()
    )
    model.graph.node.insert(len(model.graph.node) - 1, helper.make_node("Clip", ["cq", "low", "high"], ["cut"]))
    last.input[0], last.output[0] = "cut", "restored"
    model.graph.node.append(helper.make_node("Reshape", ["restored", "shape"], ["y"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUT, 81]))
    onnx.save(model, path)
    verdict = nd.verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    [check] = [check for check in verdict.checks if check.name == "grid"]
    assert check.measured.optimizers == ("WeightBiasQuantization",)
    assert check.measured.flips > 0


def test_flips_inside_are_no_fault_of_the_file_either(tmp_path: Path):
    path = quantized_conv(tmp_path / "q.onnx")
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "inner"
    model.graph.node.append(helper.make_node("GlobalAveragePool", ["inner"], ["y"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUT, 1, 1]))
    onnx.save(model, path)
    verdict = nd.verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    [check] = [check for check in verdict.checks if check.name == "grid"]
    assert "what flips at quantizers inside explain" in check.detail
    assert check.measured.optimizers == ("WeightBiasQuantization",)


def test_an_optimizer_that_multiplies_with_fewer_digits_is_named(tmp_path: Path):
    """A norm spelled out between a product with int8 weights and a quantizer: values turn without a bias."""
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.integers(-127, 127, (6, 8)).astype(np.int8),
        "s": np.float32(0.02),
        "z": np.int8(0),
        "two": np.float32(2),
        "eps": np.float32(1e-6),
        "gain": rng.normal(size=8).astype(np.float32),
        "so": np.float32(0.03),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["h"]),
        helper.make_node("Pow", ["h", "two"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["m"], axes=[-1], keepdims=1),
        helper.make_node("Add", ["m", "eps"], ["me"]),
        helper.make_node("Sqrt", ["me"], ["sq"]),
        helper.make_node("Div", ["h", "sq"], ["n"]),
        helper.make_node("Mul", ["n", "gain"], ["gn"]),
        helper.make_node("QuantizeLinear", ["gn", "so", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "so", "z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", k]) for name, k in (("x", 6), ("y", 8))]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "q.onnx")
    result = nd.fold(tmp_path / "q.onnx", tmp_path / "folded.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert [(row.kind, row.action) for row in result.ledger] == [("RMSNormalization", "fused")]


@pytest.mark.parametrize(
    ("place", "factor"),
    [((slice(None), 3), 1.001), pytest.param((0, 0), -1.0, marks=pytest.mark.slow)],  # a larger damage of one number
)
def test_a_network_of_signs_passes_as_floats_and_a_damage_of_it_fails(tmp_path: Path, place, factor: float):
    """Sums of equal terms are rounded alike at each addition: that is no flip, and hides no wrong number."""
    recipe = load_recipe(Path(__file__).parents[2] / "export" / "digits_binary.toml")
    model = load_trained(recipe)
    example = recipe_example(recipe, model)
    given = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
    traced = trace(model, example.args, input_names=example.input_names, **given)
    rewritten = rewrite(traced.model)
    known = {"args": example.args, "traced": traced, "rewritten": rewritten, "level": "quick", **given}
    right = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(model, right, **known)
    assert verdict.status == "pass", verdict.summary()
    graph = load_graph(right)
    (head,) = (n for n in graph.graph if n.op_type in ("Gemm", "MatMul"))
    weight = head.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    damaged = np.array(weight.const_value.numpy())
    damaged[place] *= factor
    weight.const_value = ir.Tensor(damaged, name=weight.name)
    verdict = verify(model, save_graph(graph, tmp_path / "wrong.onnx"), **known)
    assert verdict.status == "fail", verdict.summary()
