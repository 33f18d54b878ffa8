"""Recurrent operators and pools with indices: every attribute, against onnxruntime on the same file."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_outputs import run_onnxruntime

from normdeploy.graph import Evaluator, evaluate_node

HIDDEN, SIZE, BATCH, TIME = 5, 4, 3, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": ["Relu"], "GRU": ["HardSigmoid", "Softsign"], "LSTM": ["HardSigmoid", "Relu", "Tanh"]}


def recurrent(op_type: str, direction: str, *, lengths: bool, states: bool, peepholes: bool, **attributes: Any):
    rng = np.random.default_rng(0)
    gates, directions = GATES[op_type], 2 if direction == "bidirectional" else 1
    shapes = {
        "w": (directions, gates * HIDDEN, SIZE),
        "r": (directions, gates * HIDDEN, HIDDEN),
        "b": (directions, 2 * gates * HIDDEN),
        "h0": (directions, BATCH, HIDDEN),
        "c0": (directions, BATCH, HIDDEN),
        "p": (directions, 3 * HIDDEN),
    }
    constants: dict[str, Any] = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    constants["n"] = np.array([6, 1, 4], np.int32)
    inputs = ["x", "w", "r", "b", "n" if lengths else "", "h0" if states else ""]
    if op_type == "LSTM":
        inputs += ["c0" if states else "", "p" if peepholes else ""]
    outputs = ["y", "yh", "yc"][: 3 if op_type == "LSTM" else 2]
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * directions
    node = helper.make_node(op_type, inputs, outputs, hidden_size=HIDDEN, direction=direction, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [TIME, BATCH, SIZE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(constants[name], name) for name in inputs[1:] if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": 2 * rng.standard_normal((TIME, BATCH, SIZE)).astype(np.float32)}


def agree(model: Any, feeds: dict[str, Any]) -> None:
    expected = run_onnxruntime(model, feeds)
    with torch.no_grad():
        found = Evaluator(ir.from_proto(model)).run(feeds)
    for want, (name, have) in zip(expected, found.items(), strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
def test_every_attribute_is_that_of_onnxruntime(op_type: str, direction: str):
    kinds: dict[str, list[dict[str, Any]]] = {
        "RNN": [{}],
        "GRU": [{}, {"linear_before_reset": 1}],
        "LSTM": [{}, {"input_forget": 1}],
    }
    for kind, clip, given in itertools.product(kinds[op_type], (None, 0.3), (False, True)):
        attributes = kind | ({} if clip is None else {"clip": clip})
        peepholes = given and "input_forget" not in attributes
        agree(*recurrent(op_type, direction, lengths=given, states=given, peepholes=peepholes, **attributes))
    functions = {"activations": FUNCTIONS[op_type]}
    agree(*recurrent(op_type, direction, lengths=False, states=True, peepholes=False, **functions))


def of_sizes(node: ir.Node, operands: list[torch.Tensor | None]) -> list[torch.Tensor]:
    return evaluate_node(node, [t if t is None else t.to("meta") for t in operands], opset_imports={"": 17})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
def test_of_sizes_alone_it_returns_the_sizes(op_type: str, direction: str):
    for time, lengths, layout in itertools.product((0, 1, TIME), (False, True), (0, 1)):
        model, _ = recurrent(op_type, direction, lengths=lengths, states=not layout, peepholes=False, layout=layout)
        (node,) = ir.from_proto(model).graph
        held = (value and torch.tensor(value.const_value.numpy()) for value in node.inputs[1:])
        operands = [torch.zeros((BATCH, time, SIZE) if layout else (time, BATCH, SIZE)), *held]
        wanted = evaluate_node(node, operands, opset_imports={"": 17})
        found = of_sizes(node, operands)
        assert [(t.shape, t.dtype, t.is_meta) for t in found] == [(t.shape, t.dtype, True) for t in wanted]
        if not layout:  # one step says all
            operands[0] = torch.empty(10**8, BATCH, SIZE, device="meta")
            assert of_sizes(node, operands)[0].shape == (10**8, *wanted[0].shape[1:])


@pytest.mark.parametrize(
    ("shape", "pads"), [((2, 3, 9), [1, 1]), ((2, 3, 7, 8), [1, 0, 0, 1]), ((2, 2, 5, 6, 7), [0, 1, 1, 1, 0, 1])]
)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_indices_of_a_max_pool(shape: tuple[int, ...], pads: list[int], order: int, ceil: int):
    rank = len(shape) - 2
    node = helper.make_node(
        "MaxPool", ["x"], ["y", "i"], kernel_shape=[3] * rank, strides=[2] * rank, pads=pads, storage_order=order,
        ceil_mode=ceil,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, k, None) for n, k in (("y", TensorProto.FLOAT), ("i", TensorProto.INT64))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    agree(model, {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)})
