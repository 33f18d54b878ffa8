"""Put a node's translation in its place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import read_instead


def put_in_place(node: ir.Node, translation: ir.Graph, version: int) -> None:
    """Make a node compute what its translation says, under its own names.

    Where one node of the translation makes all its outputs, the node itself becomes that one, and its outputs stay the
    values they are; otherwise it is replaced.

    Args:
        node: in a graph.
        translation: from ``in_0``, ... to ``out_0``, ...
        version: goes into the names of what is added.
    """
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise GraphError(f"node {node.name!r} belongs to no graph; expected one of the model's")
    known: dict[str, ir.Value | None] = {f"in_{index}": value for index, value in enumerate(node.inputs)}
    base = next(value.name for value in node.outputs if value.name)
    fresh = (f"{base}_opset{version}_{count}" for count in itertools.count())
    for value in translation.initializers.values():
        if str(value.name) not in known:
            known[str(value.name)] = _register(graph, value, next(fresh))
    made = list(translation.outputs)
    main = made[0].producer()
    used = [value for value in node.outputs if value.name]
    if main is not None and _stands_for(main, made, node):
        before = [part for part in translation if part is not main]
        graph.insert_before(node, [_copy(part, known, fresh, node) for part in before])
        _become(node, main, known)
        return
    copies = [_copy(part, known, fresh, node) for part in translation]
    results = [known[str(value.name)] for value in made]
    ir.convenience.replace_nodes_and_values(graph, node, [node], copies, used, [value for value in results if value])


def _stands_for(main: ir.Node, made: list[ir.Value], node: ir.Node) -> bool:
    """Tell whether the last node of a translation has all its results, at the places that the node has them."""
    places = [index for index, value in enumerate(node.outputs) if value.name]
    found = [main.outputs.index(value) if value in main.outputs else -1 for value in made]
    return found == places and not any(value.uses() for value in main.outputs)


def _become(node: ir.Node, main: ir.Node, known: Mapping[str, ir.Value | None]) -> None:
    inputs = [None if value is None or not value.name else known[value.name] for value in main.inputs]
    node.op_type = main.op_type
    node.attributes.clear()
    node.attributes.update(dict(main.attributes.items()))
    read_instead(node, inputs)


def _copy(part: ir.Node, known: dict[str, ir.Value | None], fresh: Iterator[str], node: ir.Node) -> ir.Node:
    copy = ir.Node(
        part.domain,
        part.op_type,
        [None if value is None or not value.name else known[value.name] for value in part.inputs],
        attributes=list(part.attributes.values()),
        num_outputs=len(part.outputs),
        name=next(fresh),
        metadata_props=dict(node.metadata_props),
    )
    for theirs, ours in zip(part.outputs, copy.outputs, strict=True):
        ours.name = next(fresh) if theirs.name else ""
        tensor = constant_tensor(theirs)
        if tensor is None:
            ours.type, ours.shape = theirs.type, theirs.shape
        else:
            ours.type, ours.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        known[str(theirs.name)] = ours
    return copy


def _register(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    ours = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    graph.register_initializer(ours)
    return ours
