"""Values that take the place of others, names that nobody has, and what is taken out with what."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.graph import edit
from normdeploy.graph.walk import bodies_of

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def value(name: str | None = None, *dims: int | str) -> ir.Value:
    return ir.Value(name=name, type=FLOAT, shape=ir.Shape(dims) if dims else None)


@pytest.fixture
def graph() -> ir.Graph:
    """x -> Relu -> a -> Mul by w -> b -> Neg -> y; y and b are outputs."""
    x, w = value("x", "n", 3), edit.constant_of(ir.tensor(np.float32([1, 2, 3]), name="w"), "w")
    relu = ir.Node("", "Relu", [x], outputs=[value("a", "n", 3)])
    mul = ir.Node("", "Mul", [relu.outputs[0], w], outputs=[value("b", "n", 3)])
    neg = ir.Node("", "Neg", [mul.outputs[0]], outputs=[value("y", "n", 3)])
    outputs = [neg.outputs[0], mul.outputs[0]]
    return ir.Graph([x], outputs, nodes=[relu, mul, neg], initializers=[w], opset_imports={"": 18})


def named(graph: ir.Graph, name: str) -> ir.Value:
    return ir.convenience.create_value_mapping(graph)[name]


def test_what_takes_a_place_takes_name_readers_and_what_the_graph_declares(graph: ir.Graph) -> None:
    old = named(graph, "b")
    made = ir.Node("", "Add", [named(graph, "a"), named(graph, "w")], outputs=[ir.Value(name="fresh")])
    graph.insert_before(old.producer(), made)
    edit.take_place(made.outputs[0], old)
    new = named(graph, "b")
    assert new is made.outputs[0]
    assert graph.outputs[1] is new
    assert new.shape == ["n", 3]
    assert new.dtype == ir.DataType.FLOAT
    assert named(graph, "y").producer().inputs[0] is new
    assert not edit.is_read(old)
    assert old.name is None


def test_an_inner_value_may_keep_its_own_name_and_an_output_never(graph: ir.Graph) -> None:
    a, x = named(graph, "a"), named(graph, "x")
    edit.take_place(x, a, named=False)
    assert (a.name, x.name) == ("a", "x")
    assert named(graph, "b").producer().inputs[0] is x
    edit.take_place(named(graph, "b"), named(graph, "y"), named=False)
    assert [output.name for output in graph.outputs] == ["y", "y"]


def test_names_are_free_in_every_graph_of_a_model(graph: ir.Graph) -> None:
    inner = ir.Node("", "Neg", [named(graph, "a")], outputs=[value("inside")])
    body = ir.Graph([], inner.outputs, nodes=[inner], name="then")
    flag = value("flag")
    graph.inputs.append(flag)
    graph.append(ir.Node("", "If", [flag], [ir.AttrGraph("then_branch", body)], outputs=[value("chosen")]))
    edit.share_names(ir.Model(graph, ir_version=10))
    assert edit.free_name(graph, "new") == "new"
    assert edit.free_name(body, "new") == "new_1"
    assert edit.free_name(body, "w") == "w_1"
    assert edit.free_name(graph, "inside") == "inside_1"
    assert bodies_of(graph[-1]) == [body]


def test_constants_are_put_in_under_names_of_their_own(graph: ir.Graph) -> None:
    axes = edit.put_constant(graph, [0, 2], "w")
    third = edit.put_exact(graph, lambda: np.array([1 / 3]), (1,), ir.DataType.FLOAT, "w")
    assert [axes.name, third.name] == ["w_1", "w_2"]
    assert all(found.is_initializer() and found.const_value.name == found.name for found in (axes, third))
    assert axes.dtype == ir.DataType.INT64
    assert axes.const_value.numpy().tolist() == [0, 2]
    assert third.const_value.numpy()[0] == np.float32(1 / 3)
    assert third.const_value.numpy64()[0] == 1 / 3


def test_only_what_nothing_reads_is_taken_out_with_its_constants(graph: ir.Graph) -> None:
    mul, neg = named(graph, "b").producer(), named(graph, "y").producer()
    edit.take_out([mul, neg])
    assert [node.op_type for node in graph] == ["Relu", "Mul", "Neg"]  # both are read from outside
    graph.outputs.clear()
    edit.take_out([mul, neg])
    assert [node.op_type for node in graph] == ["Relu"]
    assert not graph.initializers


def test_what_only_computed_an_unread_value_goes_as_far_back_as_that(graph: ir.Graph) -> None:
    y = named(graph, "y")
    graph.outputs.remove(y)
    edit.take_out_unread([y])
    assert [node.op_type for node in graph] == ["Relu", "Mul"]  # Mul's result is an output still
    b = named(graph, "b")
    graph.outputs.clear()
    edit.take_out_unread([b])
    assert not list(graph)
    assert not graph.initializers


def test_what_nothing_reads_leaves_every_graph_of_a_model(graph: ir.Graph) -> None:
    """A chain as far back as nothing else reads it, its constants, and in bodies; what is given out or read stays."""
    b, bias = named(graph, "b"), edit.put_constant(graph, np.float32([1, 2, 3]), "bias", ir.DataType.FLOAT)
    first = ir.Node("", "Add", [b, bias], outputs=[value("dead", "n", 3)])
    second = ir.Node("", "Exp", [first.outputs[0]], outputs=[value("deader", "n", 3)])
    kept, lost = (ir.Node("", op, [named(graph, "a")], outputs=[value(op, "n", 3)]) for op in ("Abs", "Floor"))
    body = ir.Graph([], [kept.outputs[0]], nodes=[kept, lost])
    condition = edit.put_constant(graph, np.array(True), "condition", ir.DataType.BOOL)
    chooser = ir.Node("", "If", [condition], [ir.AttrGraph("then_branch", body)], outputs=[value("chosen", "n", 3)])
    for node in (first, second, chooser):
        graph.append(node)
    graph.outputs.append(chooser.outputs[0])
    model = ir.Model(graph, ir_version=10)
    assert edit.drop_unread(model)
    assert [node.op_type for node in graph] == ["Relu", "Mul", "Neg", "If"]
    assert [node.op_type for node in body] == ["Abs"]
    assert sorted(graph.initializers) == ["condition", "w"]
    assert not edit.drop_unread(model)


def test_a_reader_is_alone_where_nobody_else_looks(graph: ir.Graph) -> None:
    assert edit.only_reader(named(graph, "a")).op_type == "Mul"
    assert edit.only_reader(named(graph, "b")) is None  # an output, too
    graph.append(ir.Node("", "Neg", [named(graph, "a")]))
    assert edit.only_reader(named(graph, "a")) is None
