"""Products of a large weight that are taken ahead are those of the weight that stands there then, and of no other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import ExactTensor, evaluate_region
from normdeploy.graph.exact import parts64
from normdeploy.graph.operators.pieces import Ahead

RNG = np.random.default_rng(0)
SHAPES = {"Conv": (300, 150, 3, 3), "MatMul": (500, 400), "Gemm": (400, 500)}


def product(op: str, **attributes: int) -> tuple[ir.Node, np.ndarray]:
    array = RNG.standard_normal(SHAPES[op]).astype(np.float32)
    w = ir.Value(name="w", const_value=ir.tensor(array, name="w"))
    given = {"Conv": {"pads": [1, 1, 1, 1]}, "MatMul": {}, "Gemm": {"transB": 1}}[op] | attributes
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.Node("", op, [x, w], attributes=ir.convenience.convert_attributes(given), outputs=[ir.Value(name="y")])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[w], opset_imports={"": 20})
    assert graph is not None
    return node, array


def numbers(op: str) -> torch.Tensor:
    return torch.from_numpy(RNG.standard_normal((1, 150, 4, 4) if op == "Conv" else (3, 500)))


def expected(op: str, x: torch.Tensor, weight: np.ndarray) -> torch.Tensor:
    w = torch.from_numpy(weight.astype(np.float64))
    return torch.nn.functional.conv2d(x, w, padding=1) if op == "Conv" else x @ (w.T if op == "Gemm" else w)


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("along", ["nothing", "outputs", "inputs", "both"])
def test_the_next_product_is_right_whatever_becomes_of_the_weight(op, along):
    node, array = product(op)
    old, new = numbers(op), numbers(op)
    ahead = Ahead({node.inputs[0]: new})
    (first,) = evaluate_region([node], {node.inputs[0]: old}, node.outputs, ahead=ahead)
    torch.testing.assert_close(first, expected(op, old, array), rtol=1e-12, atol=1e-12)
    assert len(ahead.found) == 1
    outs = {"Conv": 0, "MatMul": 1, "Gemm": 0}[op]
    whole, parts = array.astype(np.float64), parts64(node.inputs[1].const_value)
    for axis in {"nothing": (), "outputs": (outs,), "inputs": (1 - outs,), "both": (outs, 1 - outs)}[along]:
        factor = RNG.uniform(0.5, 2.0, [size if at == axis else 1 for at, size in enumerate(array.shape)])
        whole, parts = whole * factor, parts.scaled(factor)
    held = whole
    scaled = ir.Value(name="v", const_value=ExactTensor(lambda: held, ir.DataType.FLOAT, array.shape, "v", parts=parts))
    node.graph.register_initializer(scaled)
    node.replace_input_with(1, scaled)
    (second,) = evaluate_region([node], {node.inputs[0]: new}, node.outputs, ahead=ahead)
    torch.testing.assert_close(second, expected(op, new, whole), rtol=1e-12, atol=1e-12)


def test_other_attributes_other_inputs_and_other_weights_are_computed_anew():
    node, array = product("Conv")
    old, new = numbers("Conv"), numbers("Conv")
    ahead = Ahead({node.inputs[0]: new})
    evaluate_region([node], {node.inputs[0]: old}, node.outputs, ahead=ahead)
    other = numbers("Conv")
    (found,) = evaluate_region([node], {node.inputs[0]: other}, node.outputs, ahead=ahead)
    torch.testing.assert_close(found, expected("Conv", other, array), rtol=1e-12, atol=1e-12)
    node.attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 0, 0])
    (found,) = evaluate_region([node], {node.inputs[0]: new}, node.outputs, ahead=ahead)
    assert found.shape == (1, 300, 2, 2)
    node.attributes["pads"] = ir.AttrInt64s("pads", [1, 1, 1, 1])
    changed = ir.Value(name="v", const_value=ir.tensor(array + 1, name="v"))
    node.graph.register_initializer(changed)
    node.replace_input_with(1, changed)
    (found,) = evaluate_region([node], {node.inputs[0]: new}, node.outputs, ahead=ahead)
    torch.testing.assert_close(found, expected("Conv", new, array + 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", SHAPES)
def test_factors_of_inputs_and_outputs_do_not_make_a_weight_read_again(op):
    node, array = product(op)
    outs, x = {"Conv": 0, "MatMul": 1, "Gemm": 0}[op], node.inputs[0]
    front = RNG.uniform(0.5, 2.0, array.shape[1 - outs])
    behind = RNG.uniform(0.5, 2.0, array.shape[outs])
    old, new = numbers(op), numbers(op)
    axis = 1 if op == "Conv" else -1
    scaled = new * torch.from_numpy(front.reshape([-1 if at == axis % new.dim() else 1 for at in range(new.dim())]))
    reads = []

    def along(vector: np.ndarray, axis: int) -> np.ndarray:
        return vector.reshape([-1 if at == axis else 1 for at in range(array.ndim)])

    class Read(ExactTensor):
        def numpy64(self):
            reads.append(self.name)
            return super().numpy64()

    parts = parts64(node.inputs[1].const_value).scaled(along(front, 1 - outs)).scaled(along(behind, outs))
    whole = array.astype(np.float64) * along(front, 1 - outs) * along(behind, outs)
    ahead = Ahead({x: scaled})
    evaluate_region([node], {x: old}, node.outputs, ahead=ahead)
    weight = ir.Value(name="v", const_value=Read(lambda: whole, ir.DataType.FLOAT, array.shape, "v", parts=parts))
    node.graph.register_initializer(weight)
    node.replace_input_with(1, weight)
    (found,) = evaluate_region([node], {x: new}, node.outputs, ahead=ahead)
    torch.testing.assert_close(found, expected(op, new, whole), rtol=1e-12, atol=1e-12)
    assert len(ahead.found) == 1
    assert not reads


@pytest.mark.parametrize("scaled", [False, True])
def test_a_mean_of_positions_tells_weights_apart_that_differ_in_one_tap(scaled):
    """What is returned is a mean whose weights are positive, not equal, and the same of old and new."""
    node, array = product("Conv", strides=[2, 1])
    x, drawn = node.inputs[0], numbers("Conv")
    ahead = Ahead({x: drawn}, np.random.default_rng(1))
    (old,) = evaluate_region([node], {x: drawn}, node.outputs, ahead=ahead)
    assert old.shape == (1, 300, 1, 1)
    w = torch.from_numpy(array.astype(np.float64))
    every = torch.nn.functional.conv2d(drawn, w, padding=1, stride=(2, 1)).reshape(300, -1).numpy()
    weights = np.linalg.lstsq(every, old.reshape(300).numpy(), rcond=None)[0]
    np.testing.assert_allclose(every @ weights, old.reshape(300).numpy(), rtol=0, atol=1e-9)
    assert abs(weights.sum() - 1) < 1e-9
    assert weights.min() > 0
    assert len(np.unique(weights.round(9))) == len(weights)
    for corner in (0, 2):
        other = array.copy()
        other[7, 3, corner, corner] += 1e-3
        parts = parts64(ir.tensor(other)).scaled(np.full((1, 150, 1, 1), 2.0)) if scaled else parts64(ir.tensor(other))
        held = other.astype(np.float64) * (2.0 if scaled else 1.0)
        tensor = ExactTensor(lambda held=held: held, ir.DataType.FLOAT, array.shape, "v", parts=parts)
        weight = ir.Value(name=f"v{corner}", const_value=tensor)
        node.graph.register_initializer(weight)
        node.replace_input_with(1, weight)
        (new,) = evaluate_region([node], {x: drawn}, node.outputs, ahead=ahead)
        apart = np.flatnonzero(np.abs((new - (2.0 if scaled else 1.0) * old).numpy().reshape(-1)) > 1e-6)
        assert apart.tolist() == [7]
