"""What an evaluator keeps between runs holds no longer than what it was made of."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import Evaluator, evaluate

X = np.array([1.0, 2.0, 4.0])


def graph() -> tuple[ir.Graph, dict[str, ir.Node]]:
    """Return y = x * sum(-c) + w, with c of a Constant and w an initializer: the product's factor is fixed."""
    x, w = ir.val("x", ir.DataType.FLOAT, [3]), ir.val("w")
    w.const_value = ir.tensor(np.array([1.0, 1.0, 1.0], np.float32), name="w")
    c = ir.node("Constant", [], {"value_floats": [2.0, 3.0]})
    negated = ir.node("Neg", [c.outputs[0]])
    total = ir.node("ReduceSum", [negated.outputs[0]], {"keepdims": 0})
    product = ir.node("Mul", [x, total.outputs[0]])
    last = ir.node("Add", [product.outputs[0], w])
    nodes = {"c": c, "negated": negated, "total": total, "product": product, "last": last}
    for name, node in nodes.items():
        node.outputs[0].name = f"{name}.out"
    made = ir.Graph([x], [last.outputs[0]], nodes=list(nodes.values()), initializers=[w], opset_imports={"": 18})
    return made, nodes


def ran(evaluator: Evaluator) -> np.ndarray:
    return evaluator.run({"x": X})["last.out"].numpy()


def test_a_second_run_computes_nothing_of_constants_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = graph()
    evaluator = Evaluator(made)
    np.testing.assert_array_equal(ran(evaluator), X * -5 + 1)
    evaluated: list[str] = []
    plain = evaluate.evaluate_node
    monkeypatch.setattr(
        evaluate, "evaluate_node", lambda node, *a, **k: evaluated.append(node.op_type) or plain(node, *a, **k)
    )
    np.testing.assert_array_equal(ran(evaluator), X * -5 + 1)
    assert evaluated == ["Mul", "Add"]


def test_a_constant_an_operator_and_a_wire_that_change_are_seen() -> None:
    made, nodes = graph()
    evaluator = Evaluator(made)
    np.testing.assert_array_equal(ran(evaluator), X * -5 + 1)
    nodes["c"].attributes["value_floats"] = ir.AttrFloat32s("value_floats", [4.0, 3.0])
    np.testing.assert_array_equal(ran(evaluator), X * -7 + 1)
    made.initializers["w"].const_value = ir.tensor(np.array([2.0, 2.0, 2.0], np.float32), name="w")
    np.testing.assert_array_equal(ran(evaluator), X * -7 + 2)
    nodes["total"].replace_input_with(0, nodes["c"].outputs[0])
    np.testing.assert_array_equal(ran(evaluator), X * 7 + 2)
    nodes["total"].attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    assert evaluator.run({"x": X}, fetch=["total.out"])["total.out"].shape == (1,)


def test_what_replaces_a_fixed_result_is_taken_and_kept_for_no_other_run() -> None:
    made, nodes = graph()
    evaluator = Evaluator(made)
    ran(evaluator)
    hooked = evaluator.run({"x": X}, hook=lambda node, found: [found[0] * 2] if node is nodes["negated"] else None)
    np.testing.assert_array_equal(hooked["last.out"].numpy(), X * -10 + 1)
    instead = evaluator.run({"x": X}, stand_ins={nodes["total"]: lambda _: torch.tensor(3.0, dtype=torch.float64)})
    np.testing.assert_array_equal(instead["last.out"].numpy(), X * 3 + 1)
    given = evaluator.run({"x": X}, replace={"c.out": torch.tensor([1.0, 1.0], dtype=torch.float64)})
    np.testing.assert_array_equal(given["last.out"].numpy(), X * -2 + 1)
    np.testing.assert_array_equal(ran(evaluator), X * -5 + 1)


def test_what_stands_for_an_initializer_is_read_in_its_place() -> None:
    made, _ = graph()
    other = ir.tensor(np.array([9.0, 8.0, 7.0], np.float32), name="w")
    evaluator = Evaluator(made, stored={made.initializers["w"]: other})
    np.testing.assert_array_equal(ran(evaluator), X * -5 + np.array([9.0, 8.0, 7.0]))
    np.testing.assert_array_equal(ran(Evaluator(made)), X * -5 + 1)
