"""The description of linear operators against the operators themselves, run in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from normdeploy.graph import evaluate_node
from normdeploy.graph.linear_view import LINEAR, Channels, Form, Linear, layer_of, linear_of
from normdeploy.graph.traits import MICROSOFT, Trait, kinds


@dataclass(frozen=True)
class Case:
    """An operator with the shapes of its operands; ``fixed`` are those known before run time."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = (1,)
    domain: str = ""

    def node(self, operands: list[Tensor]) -> ir.Node:
        values = []
        for index, tensor in enumerate(operands):
            value = ir.Value(name=f"x{index}")
            if index in self.fixed:
                tensor_ir = ir.tensor(tensor.numpy(), name=f"x{index}")
                constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor_ir)], num_outputs=1)
                value = constant.outputs[0]
                value.name = f"x{index}"
            values.append(value)
        attributes = ir.convenience.convert_attributes(self.attributes)
        return ir.Node(self.domain, self.operator, values, attributes, outputs=[ir.Value(name="y")])

    def drawn(self, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes]


def _run(node: ir.Node, operands: list[Tensor]) -> Tensor:
    return evaluate_node(node, list(operands), opset_imports={"": 22, MICROSOFT: 1})[0]


def _conv(name: str, groups: int, *, domain: str = "") -> Case:
    weight = (4, 6 // groups, 3, 2) if name != "ConvTranspose" else (6, 4 // groups, 3, 2)
    return Case(name, ((2, 6, 7, 5), weight, (4,)), {"group": groups, "strides": [2, 1]}, (1, 2), domain)


CASES = [
    *(_conv(name, groups) for name in ("Conv", "ConvTranspose") for groups in (1, 2)),
    _conv("FusedConv", 2, domain=MICROSOFT),
    Case("DeformConv", ((2, 6, 4, 5), (4, 3, 2, 2), (2, 8, 3, 4), (4,)), {"group": 2}, (1, 3)),
    Case("MatMul", ((2, 3, 4), (4, 5))),
    Case("MatMul", ((3, 4), (2, 4, 5)), fixed=(0,)),
    Case("MatMul", ((2, 3, 4), (2, 4, 5))),
    Case("Gemm", ((3, 4), (4, 5), (5,)), {"alpha": 0.5, "beta": -2.0}, (1, 2)),
    Case("Gemm", ((4, 3), (5, 4), (5,)), {"transA": 1, "transB": 1}, (1, 2)),
    Case("Gemm", ((4, 3), (5, 4), (3, 1)), {"transA": 1, "transB": 1, "beta": 3.0}, (0, 2)),
    Case("Gemm", ((3, 4), (4, 5)), {}, (0,)),
    Case("FusedGemm", ((3, 4), (5, 4), (5,)), {"transB": 1}, (1, 2), MICROSOFT),
    Case("FusedMatMul", ((2, 4, 3), (5, 4)), {"transA": 1, "transB": 1, "alpha": 0.25}, (1,), MICROSOFT),
    Case("FusedMatMul", ((4, 3), (2, 5, 4)), {"transA": 1, "transB": 1}, (0,), MICROSOFT),
]  # fmt: skip

IDS = [f"{case.operator}-{index}" for index, case in enumerate(CASES)]


def _described(case: Case, operands: list[Tensor]) -> tuple[ir.Node, Linear, Channels]:
    node = case.node(operands)
    linear = linear_of(node)
    assert linear is not None
    return node, linear, linear.channels(tuple(operands[linear.weight].shape))


def _vector(size: int, axis: int, rank: int, seed: int) -> Tensor:
    numbers = 0.5 + torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.reshape([size if at == axis % rank else 1 for at in range(rank)])


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_scale_of_the_data_is_a_scale_of_what_the_weight_reads(case: Case) -> None:
    operands = case.drawn()
    node, linear, channels = _described(case, operands)
    x, weight = operands[linear.data], operands[linear.weight]
    assert x.shape[linear.data_axis(x.dim())] == channels.ins
    scale = _vector(channels.ins, linear.data_axis(x.dim()), x.dim(), 1)
    factor = scale.reshape(-1)[torch.from_numpy(channels.read)]
    before, after = list(operands), list(operands)
    before[linear.data], after[linear.weight] = x * scale, weight * factor
    assert torch.allclose(_run(node, before), _run(node, after))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_scale_of_what_the_weight_writes_is_a_scale_of_the_result(case: Case) -> None:
    operands = case.drawn()
    node, linear, channels = _described(case, operands)
    assert channels.written is not None
    weight, y = operands[linear.weight], _run(node, operands)
    axis = linear.result_axis(y.dim())
    assert axis is not None
    assert y.shape[axis] == channels.outs
    scale = _vector(channels.outs, axis, y.dim(), 2)
    after = list(operands)
    after[linear.weight] = weight * scale.reshape(-1)[torch.from_numpy(channels.written)]
    biased = linear.value(linear.bias) is not None
    bias = _run(node, [t if at == linear.bias else torch.zeros_like(t) for at, t in enumerate(operands)])
    share = bias if biased else torch.zeros_like(y)
    assert torch.allclose((y - share) * scale, _run(node, after) - share)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_bias_counts_beta_times_and_the_product_alpha_times(case: Case) -> None:
    operands = case.drawn()
    node, linear, _ = _described(case, operands)
    y = _run(node, operands)
    if linear.bias is not None and linear.bias < len(operands):
        more = [t + 1.5 if at == linear.bias else t for at, t in enumerate(operands)]
        assert torch.allclose(_run(node, more), y + 1.5 * linear.beta)
    plain = {name: value for name, value in case.attributes.items() if name != "alpha"}
    unscaled = Case(case.operator, case.shapes, plain, case.fixed, case.domain).node(operands)
    product = [torch.zeros_like(t) if at == linear.bias else t for at, t in enumerate(operands)]
    assert torch.allclose(_run(node, product), linear.alpha * _run(unscaled, product))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_as_many_terms_are_added_up_as_it_says(case: Case) -> None:
    operands = case.drawn()
    node, linear, _ = _described(case, operands)
    factors = (linear.data, linear.weight)
    ones = [torch.ones_like(t) if at in factors else torch.zeros_like(t) for at, t in enumerate(operands)]
    most = float(_run(node, ones).max()) / linear.alpha
    expected = linear.terms(case.shapes[linear.weight])
    strides = int(np.prod(case.attributes.get("strides", [1])))
    assert most <= expected + 1e-9
    assert most >= expected / strides - 1e-9  # a transposed convolution's strides leave taps out


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_operator_takes_a_scale_of_its_input_into_its_weight(operator: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator] * 5
    case = Case(operator, ((3, 2, 4), (1, gates, 4), (1, gates, 5), (1, 2 * gates)), {"hidden_size": 5}, (1, 2, 3))
    operands = case.drawn()
    node, linear, channels = _described(case, operands)
    assert (linear.form, channels.written, linear.result_axis(3)) == (Form.RECURRENT, None, None)
    scale = _vector(4, linear.data_axis(3), 3, 1)
    before, after = list(operands), list(operands)
    before[0], after[1] = operands[0] * scale, operands[1] * scale.reshape(-1)[torch.from_numpy(channels.read)]
    assert torch.allclose(_run(node, before), _run(node, after))


def _integers(*shape: int, low: int = 0, high: int = 200, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(low, high, shape)


@pytest.mark.parametrize("kind", ["ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"])
def test_the_steps_of_operators_on_integers_stand_where_it_says(kind: str) -> None:
    """What integers stand for, through the float operator, is what the integer operator's result stands for."""
    convolution = kind.endswith("Conv") or kind == "ConvInteger"
    shapes = ((2, 3, 5, 5), (4, 3, 2, 2)) if convolution else ((3, 4), (4, 5))
    x, w = (_integers(*shape, seed=seed) for seed, shape in enumerate(shapes))
    parts: dict[str, Any] = {
        "x": x.astype(np.uint8),
        "w": w.astype(np.uint8),
        "xz": np.array(90, np.uint8),
        "wz": np.array(110, np.uint8),
    }
    parts |= {
        "xs": np.array(0.25, np.float32),
        "ws": np.array(0.5, np.float32),
        "ys": np.array(64.0, np.float32),
        "yz": np.array(120, np.uint8),
    }
    long = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    order = long if kind.startswith("QLinear") else ["x", "w", "xz", "wz"]
    node = ir.Node("", kind, [ir.Value(name=name) for name in order], outputs=[ir.Value(name="y")])
    linear = linear_of(node)
    assert linear is not None
    assert (order[linear.data], order[linear.weight]) == ("x", "w")
    named = {}
    for role, steps in (("x", linear.data_steps), ("w", linear.weight_steps), ("y", linear.result_steps)):
        if steps is not None:
            named |= {role + "s": steps.scale, role + "z": steps.zero}
    assert {name: order[at] for name, at in named.items() if at is not None} == {n: n for n in order if len(n) == 2}
    session = ort.InferenceSession(_model(kind, order, parts).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: parts[name] for name in order})
    floats = [torch.from_numpy(parts[n].astype(np.float64) - float(parts[n + "z"])) for n in ("x", "w")]
    scales = (0.25 * 0.5) if kind.startswith("QLinear") else 1.0
    plain = torch.nn.functional.conv2d(*floats) if convolution else floats[0] @ floats[1]
    truth = scales * plain.numpy()
    stands = (found.astype(np.float64) - 120.0) * 64.0 if kind.startswith("QLinear") else found
    inside = (found > 0) & (found < 255) if kind.startswith("QLinear") else np.ones_like(found, bool)
    assert inside.any()
    assert np.abs(stands - truth)[inside].max() <= (32.0 if kind.startswith("QLinear") else 0.0)


def _model(kind: str, order: list[str], parts: dict[str, Any]) -> onnx.ModelProto:
    types = {name: onnx.helper.np_dtype_to_tensor_dtype(parts[name].dtype) for name in order}
    inputs = [onnx.helper.make_tensor_value_info(name, types[name], parts[name].shape) for name in order]
    result_type = onnx.TensorProto.UINT8 if kind.startswith("QLinear") else onnx.TensorProto.INT32
    result = onnx.helper.make_tensor_value_info("y", result_type, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node(kind, order, ["y"])], "integers", inputs, [result])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


def test_the_operand_that_is_known_is_the_weight_of_a_product() -> None:
    for fixed, expected in ((0,), 0), ((1,), 1), ((), 1), ((0, 1), 1):
        case = Case("MatMul", ((3, 3), (3, 3)), fixed=fixed)
        linear = linear_of(case.node(case.drawn()))
        assert linear is not None
        assert (linear.data, linear.weight) == (1 - expected, expected)


def test_integers_with_steps_are_known_before_run_time() -> None:
    integers = Case("DequantizeLinear", ((3, 3), ()), fixed=(0, 1))
    stored = integers.node([torch.ones(3, 3, dtype=torch.int8), torch.tensor(0.5, dtype=torch.float32)])
    node = ir.Node("", "MatMul", [stored.outputs[0], ir.Value(name="x")])
    linear = linear_of(node)
    assert linear is not None
    assert linear.weight == 0


def test_another_domain_s_operator_of_the_same_name_is_not_described() -> None:
    values = [ir.Value(name="x"), ir.Value(name="w")]
    assert linear_of(ir.Node("my.own", "Conv", values)) is None
    assert linear_of(ir.Node("ai.onnx", "Conv", values)) is not None
    assert linear_of(ir.Node("", "Conv", values[:1])) is None


def test_layers_are_the_standard_operators_on_floats_that_add_a_bias() -> None:
    values = [ir.Value(name=name) for name in "abcdefghi"]
    found = {kind for kind in LINEAR if layer_of(ir.Node(*kind, values)) is not None}
    assert found == {("", "Conv"), ("", "ConvTranspose"), ("", "DeformConv"), ("", "Gemm")}
    assert layer_of(ir.Node("", "Relu", values[:1])) is None


def test_what_is_described_multiplies() -> None:
    multiplying = kinds(Trait.MULTIPLIES)
    own_steps = {kind for kind in LINEAR if kind[1].startswith(("Q", "Dynamic")) or kind[1] == "MatMulIntegerToFloat"}
    assert set(LINEAR) - own_steps <= multiplying
