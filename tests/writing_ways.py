"""Other ways of writing a graph, none of which changes what it computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
from onnx import helper

Change = Callable[[onnx.ModelProto], None]


def identity_in_front(proto: onnx.ModelProto) -> None:
    node = next(n for n in proto.graph.node if n.op_type in ("Conv", "Gemm"))
    proto.graph.node.insert(
        list(proto.graph.node).index(node), helper.make_node("Identity", [node.input[0]], ["copied"])
    )
    node.input[0] = "copied"


def identity_at_the_end(proto: onnx.ModelProto) -> None:
    name = proto.graph.output[0].name
    last = next(n for n in proto.graph.node if name in n.output)
    last.output[0] = "almost"
    proto.graph.node.append(helper.make_node("Identity", ["almost"], [name]))


def constants_as_nodes(proto: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer]
    for i, node in enumerate(nodes):
        proto.graph.node.insert(i, node)
    del proto.graph.initializer[:]


def another_order(proto: onnx.ModelProto) -> None:
    rng, nodes = random.Random(3), list(proto.graph.node)
    known = {v.name for v in proto.graph.input} | {t.name for t in proto.graph.initializer} | {""}
    placed: list[Any] = []
    while nodes:
        ready = [n for n in nodes if set(n.input) <= known]
        node = rng.choice(ready)
        nodes.remove(node)
        placed.append(node)
        known |= set(node.output)
    del proto.graph.node[:]
    proto.graph.node.extend(placed)


def other_names(proto: onnx.ModelProto) -> None:
    ends = {v.name for v in (*proto.graph.input, *proto.graph.output)}
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = name if name in ends or not name else f"_{name}"
    for tensor in proto.graph.initializer:
        tensor.name = f"_{tensor.name}"
    del proto.graph.value_info[:]


def defaults_left_out(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        schema = onnx.defs.get_schema(node.op_type, 18, node.domain)
        for attribute in list(node.attribute):
            value = helper.get_attribute_value(attribute)
            default = schema.attributes[attribute.name].default_value
            known = helper.get_attribute_value(default) if default.name else None
            ones = attribute.name in ("strides", "dilations") and set(value) == {1}
            none = attribute.name == "pads" and set(value) == {0}
            if value == known or ones or none or attribute.name == "kernel_shape":
                node.attribute.remove(attribute)


def operands_exchanged(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type in ("Add", "Mul"):
            node.input[0], node.input[1] = node.input[1], node.input[0]


def dead_node(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Neg", [proto.graph.input[0].name], ["unused"]))


WAYS = [
    identity_in_front,
    identity_at_the_end,
    constants_as_nodes,
    another_order,
    other_names,
    defaults_left_out,
    operands_exchanged,
    dead_node,
]
