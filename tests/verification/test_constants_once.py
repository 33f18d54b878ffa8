"""Constants of a file before their rounding: what follows from them is computed once, however often it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from torch import Tensor

from normdeploy.graph import Evaluator, evaluate_node
from normdeploy.graph.derivation import Derivation
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.verification.derivation.related.unrounded import Constants
from normdeploy.verification.derivation.side import checked_side, following
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.mutation.known_numbers import constants_of_graph

DOUBLED = 60


def test_what_is_read_twice_at_every_step_is_computed_once(graph_of: Callable[[str], ir.Model]):
    """Sixty doublings: by the way from the end, each value computed for each reader, they would take 2^60 steps."""
    steps = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(DOUBLED))
    model = graph_of(
        f"g (float[N,4] x) => (float[N,4] y) {{ n = Shape(x) v0 = Cast<to = 1>(n) {steps} y = Mul(x, v{DOUBLED}) }}"
    )
    side = Side(model, [{"x": (3, 4)}])
    product = next(node for node in model.graph if node.op_type == "Mul")
    found = Constants(side, Derivation(())).expression(product.inputs[1], 0)
    np.testing.assert_array_equal(found, np.array([3.0, 4.0]) * 2.0**DOUBLED)


def test_of_what_a_cast_is_like_the_type_alone_is_asked(
    graph_of: Callable[[str], ir.Model], monkeypatch: pytest.MonkeyPatch
):
    """A weight that is brought to one mean is no number that a CastLike reads."""
    model = graph_of(
        "g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 3}, double two = {2}> "
        "{ m = ReduceMean<keepdims = 1>(w) c = Sub(w, m) d = CastLike(two, c) y = Mul(x, d) }"
    )
    evaluated: list[str] = []

    def counted(node: ir.Node, *given: Any, **options: Any) -> list[Tensor]:
        evaluated.append(node.op_type)
        return evaluate_node(node, *given, **options)

    monkeypatch.setattr(following, "SMALL", 0)  # as if these were a weight's numbers, of which no size hangs
    monkeypatch.setattr(checked_side, "evaluate_node", counted)
    side = Side(model, [{"x": (3, 2)}])
    cast = next(node for node in model.graph if node.op_type == "CastLike")
    np.testing.assert_array_equal(side.constant(cast.outputs[0]), np.array(2.0))
    assert evaluated == ["CastLike"]


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.array(7.0)])
def test_an_operand_is_read_where_it_lies(array: np.ndarray):
    found = as_operand(array)
    assert found.numpy().ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(found.numpy(), array)


@pytest.mark.parametrize(
    "array", [np.broadcast_to(np.ones(1), 4), np.arange(4.0)[::-1], np.arange(4.0).astype(">f8")], ids=str
)
def test_what_torch_does_not_take_as_it_lies_is_copied(array: np.ndarray):
    found = as_operand(array).numpy()
    assert not np.shares_memory(found, array)
    np.testing.assert_array_equal(found, array)


def test_what_makes_a_weight_is_no_number_that_a_call_names(graph_of: Callable[[str], ir.Model]):
    """Of weights brought to one mean and size none is evaluated; scales and shifts of what is fed are."""
    model = graph_of(
        "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float gain = {3}, float[2] s = {5, 6}> "
        "{ m = ReduceMean<keepdims = 1>(w) c = Sub(w, m) v = Mul(c, gain) h = MatMul(x, v) y = Mul(h, s) }"
    )
    found = constants_of_graph(Evaluator(model))
    assert {name: number.tolist() for name, number in found.items()} == {"s": [5.0, 6.0]}
