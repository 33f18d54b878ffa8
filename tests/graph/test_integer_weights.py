"""Quantizers of constants become the integers that the network computes itself, on ties too."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import Evaluator
from normdeploy.graph.integer_weights import quantize_constants


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def quantized_weight(weight: np.ndarray, step: np.ndarray, zero: np.ndarray, *, factor: float | None, axis: int = 0):
    """x + dequantize(clip(quantize(weight [* factor])), -7, 7)."""
    x = ir.Value(name="x", shape=ir.Shape(weight.shape), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 20}, name="g")
    value = constant(graph, "w", weight)
    if factor is not None:
        scaled = ir.node("Mul", [value, constant(graph, "f", np.float32(factor))])
        graph.append(scaled)
        value = scaled.outputs[0]
    s, z = constant(graph, "s", step), constant(graph, "z", zero)
    quantizer = ir.node("QuantizeLinear", [value, s, z], {"axis": axis})
    cut = ir.node(
        "Clip", [quantizer.outputs[0], constant(graph, "low", np.int8(-7)), constant(graph, "high", np.int8(7))]
    )
    back = ir.node("DequantizeLinear", [cut.outputs[0], s, z], {"axis": axis})
    total = ir.node("Add", [x, back.outputs[0]])
    graph.extend([quantizer, cut, back, total])
    total.outputs[0].name = "y"
    graph.outputs.append(total.outputs[0])
    return graph


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("factor", [None, 1.1])
def test_integers_are_computed_in_float32_as_the_network_does(reciprocal: bool, factor: float | None):
    rng = np.random.default_rng(0)
    step = rng.uniform(0.01, 0.3, 64).astype(np.float32)
    # half way between two integers, give or take what float32 makes of it: float64 alone would decide otherwise
    weight = (step[:, None] * (rng.integers(-9, 9, (64, 200)) + 0.5) / np.float32(factor or 1)).astype(np.float32)
    graph = quantized_weight(weight, step, np.zeros(64, np.int8), factor=factor)
    assert quantize_constants(graph, reciprocal=reciprocal) == 2
    assert [node.op_type for node in graph] == ["DequantizeLinear", "Add"]
    assert "w" in graph.initializers
    assert "f" not in graph.initializers
    found = graph.initializers["w"].const_value.numpy()
    w = weight if factor is None else weight * np.float32(factor)
    ratio = w * (np.float32(1) / step[:, None]) if reciprocal else w / step[:, None]
    assert ratio.dtype == np.float32
    np.testing.assert_array_equal(found, np.clip(np.rint(ratio), -7, 7).astype(np.int8))
    if reciprocal:
        wanted = torch.fake_quantize_per_channel_affine(
            torch.from_numpy(w), torch.from_numpy(step), torch.zeros(64, dtype=torch.int32), 0, -7, 7
        )
        np.testing.assert_array_equal(found, np.rint(wanted.numpy() / step[:, None]).astype(np.int8))
    exact = (weight.astype(np.float64) * (factor or 1)) / step[:, None].astype(np.float64)
    assert (np.clip(np.rint(exact), -7, 7) != found).any()  # the case that this is for is among them


def test_what_is_computed_from_an_input_is_left():
    graph = quantized_weight(
        np.ones((2, 3), np.float32), np.full(2, 0.5, np.float32), np.zeros(2, np.int8), factor=None
    )
    quantizer = next(node for node in graph if node.op_type == "QuantizeLinear")
    quantizer.replace_input_with(0, graph.inputs[0])
    assert quantize_constants(graph, reciprocal=False) == 0
    assert [node.op_type for node in graph] == ["QuantizeLinear", "Clip", "DequantizeLinear", "Add"]


def test_a_clip_between_vectors_is_left():
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    held = constant(graph, "q", np.array([[-9, 3, 9]], np.int8))
    cut = ir.node("Clip", [held, constant(graph, "low", np.array([-7, -6, -5], np.int8))])
    cut.outputs[0].name, cut.outputs[0].dtype = "cut", ir.DataType.INT8
    shown = ir.node("Identity", [cut.outputs[0]])
    graph.extend([cut, shown])
    graph.outputs.append(shown.outputs[0])
    assert quantize_constants(graph, reciprocal=False) == 0  # no such Clip can be run; one of a single number can
    cut.replace_input_with(1, constant(graph, "one", np.array([-7], np.int8)))
    assert quantize_constants(graph, reciprocal=False) == 1
    np.testing.assert_array_equal(shown.inputs[0].const_value.numpy(), [[-7, 3, 9]])


def test_a_constant_that_others_read_stays_beside_its_integers():
    graph = quantized_weight(
        np.ones((2, 3), np.float32), np.full(2, 0.5, np.float32), np.zeros(2, np.int8), factor=None
    )
    add = next(node for node in graph if node.op_type == "Add")
    add.replace_input_with(0, graph.initializers["w"])
    quantize_constants(graph, reciprocal=False)
    assert graph.initializers["w"].const_value.numpy().dtype == np.float32
    np.testing.assert_array_equal(graph.initializers["w.integers"].const_value.numpy(), np.full((2, 3), 2, np.int8))


@pytest.mark.parametrize("kept", [False, True], ids=["by quantizers alone", "by another operator too"])
def test_a_weight_that_several_quantizers_read_has_the_integers_of_each(kept: bool):
    rest = "z = Add (w, x)" if kept else "z = Identity (x)"
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]> net (float[2] x) => (float[2] y, float[2] z)
        <float[2] w = {{1, 2}}, float a = {{0.5}}, float b = {{0.25}}, float c = {{1}}, int8 o = {{0}}> {{
          p = QuantizeLinear (w, a, o)  i = DequantizeLinear (p, a, o)
          q = QuantizeLinear (w, b, o)  j = DequantizeLinear (q, b, o)
          r = QuantizeLinear (w, c, o)  k = DequantizeLinear (r, c, o)
          y = Sum (i, j, k, x)  {rest} }}"""
    )
    x = np.array([1, 2], np.float32)
    expected = Evaluator(model.clone()).run({"x": x})
    assert quantize_constants(model.graph, reciprocal=False) == 3
    held = [node.inputs[0].const_value.numpy() for node in model.graph if node.op_type == "DequantizeLinear"]
    assert [list(numbers) for numbers in held] == [[2, 4], [4, 8], [1, 2]]
    assert len({value.name for value in model.graph.initializers.values()}) == len(model.graph.initializers)
    for name, found in Evaluator(model).run({"x": x}).items():
        np.testing.assert_array_equal(found.numpy(), expected[name].numpy())


@pytest.mark.parametrize("reciprocal", [True, False])
def test_a_step_that_the_module_computes_is_stored_as_it_computes_it(reciprocal: bool):
    """In float32: amax / 127 in float64 would be another number; of a file from elsewhere it stays what it is."""
    rng = np.random.default_rng(1)
    weight, largest = rng.normal(size=(64, 9)).astype(np.float32), rng.uniform(0.1, 3, 64).astype(np.float32)
    graph = quantized_weight(weight, largest, np.zeros(64, np.int8), factor=None)
    quantizer = next(node for node in graph if node.op_type == "QuantizeLinear")
    levels = constant(graph, "levels", np.float32(127))
    divided = ir.node("Div", [graph.initializers["s"], levels])
    divided.outputs[0].name, divided.outputs[0].dtype = "step", ir.DataType.FLOAT
    graph.insert_before(quantizer, divided)
    for node in graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.replace_input_with(1, divided.outputs[0])
    assert quantize_constants(graph, reciprocal=reciprocal) == 2
    step = largest / np.float32(127)
    assert step.dtype == np.float32
    assert (step != largest.astype(np.float64) / 127).any()
    restored = next(node for node in graph if node.op_type == "DequantizeLinear")
    if not reciprocal:
        assert restored.inputs[1] is divided.outputs[0]
        return
    assert "Div" not in [node.op_type for node in graph]
    np.testing.assert_array_equal(restored.inputs[1].const_value.numpy(), step)
    ratio = weight * (np.float32(1) / step[:, None])
    found = graph.initializers["w"].const_value.numpy()
    np.testing.assert_array_equal(found, np.clip(np.rint(ratio), -7, 7).astype(np.int8))
