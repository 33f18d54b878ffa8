"""Bodies of If, Loop and Scan as graphs of their own, and the sizes of what they are fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import constant_tensor
from normdeploy.graph.walk import HOLDING

_TURNS = 3
"""Turns of a loop whose number is not known: for sizes only."""

Known = Mapping[ir.Value, Tensor]


def bodies_of(node: ir.Node) -> dict[str, ir.Graph]:
    """Return the graphs that an operator holds, by attribute."""
    if not node.domain and node.op_type not in HOLDING:
        return {}
    return {a.name: a.as_graph() for a in node.attributes.data.values() if a.type == ir.AttributeType.GRAPH}


@dataclass(frozen=True)
class Body:
    """A body as a graph of its own.

    Args:
        model: its inputs are the body's own, and then what it reads from outside.
        own: its own inputs. outside: what it reads from outside, with its input for that.
    """

    model: ir.Model
    own: tuple[ir.Value, ...]
    outside: tuple[tuple[ir.Value, ir.Value], ...]


def opened(body: ir.Graph, imports: Mapping[str, int], type_of: Callable[[ir.Value], ir.DataType | None]) -> Body:
    """Return a body as a graph of its own; constants from outside become its own.

    Args:
        imports: operator sets. type_of: what is known of values outside.
    """
    graph = body.clone(allow_outer_scope_values=True)
    graph.opset_imports.update(imports)
    inside = {value for one in (graph, *graph.subgraphs()) for value in (*one.inputs, *one.initializers.values())}
    inside |= {value for node in graph.all_nodes() for value in node.outputs}
    own, made = tuple(graph.inputs), dict[ir.Value, ir.Value]()

    def moved(value: ir.Value | None) -> ir.Value | None:
        if value is None or value in inside or not value.name:
            return value
        if value not in made:
            tensor = constant_tensor(value)
            dtype = type_of(value)
            known = None if dtype is None else ir.TensorType(dtype)
            made[value] = ir.Value(name=value.name, type=known, shape=value.shape, const_value=tensor)
            if tensor is None:
                graph.inputs.append(made[value])
            else:
                graph.register_initializer(made[value])
        return made[value]

    for node in list(graph.all_nodes()):
        for index, value in enumerate(node.inputs):
            node.replace_input_with(index, moved(value))
    for index, value in enumerate(graph.outputs):
        graph.outputs[index] = moved(value) or value
    outside = tuple((value, inner) for value, inner in made.items() if inner.const_value is None)
    return Body(ir.Model(graph, ir_version=10), own, outside)


def states_of(node: ir.Node) -> list[ir.Value | None]:
    """Return what the state of a loop is at first."""
    inputs = list(node.inputs)
    if node.op_type == "Scan":
        return inputs[: len(inputs) - node.attributes.get_int("num_scan_inputs", 0)]
    return inputs[2:] if node.op_type == "Loop" else []


def turns_of(node: ir.Node, known: Known) -> int:
    """Return how often a body runs at one assignment, a number that stands for it where it is not known."""
    read = node.inputs[-1 if node.op_type == "Scan" else 0] if node.inputs else None
    first = None if read is None else known.get(read)
    if first is not None and node.op_type == "Scan":
        return int(first.shape[_axis(node, "scan_input_axes", node.attributes.get_int("num_scan_inputs", 1) - 1)])
    return _TURNS if first is None or first.is_meta or first.numel() != 1 else int(first)


def stacked(node: ir.Node, found: Sequence[Tensor], turns: int) -> list[Tensor]:
    """Return, as sizes, what a Loop or Scan makes of the results that its body gives in each turn, along their axes."""
    axes = [_axis(node, "scan_output_axes", place) for place in range(len(found))]
    return [t.expand(turns, *t.shape).movedim(0, axis) for t, axis in zip(found, axes, strict=True)]


def _axis(node: ir.Node, name: str, place: int) -> int:
    """Return the axis along which a Scan takes an operand apart, or a result is put together."""
    axes = node.attributes.get_ints(name, None) or ()
    return int(axes[place]) if place < len(axes) else 0


def fed(node: ir.Node, body: Body, known: Known) -> dict[str, Tensor] | None:
    """Return what a body is fed at one assignment, as sizes; None where that is not known."""
    states = states_of(node)
    given: list[Tensor | None] = [None if value is None else known.get(value) for value in states]
    if node.op_type == "Loop":
        given = [torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.bool), *given]
    if node.op_type == "Scan":
        for place, value in enumerate(list(node.inputs)[len(states) :]):
            read = None if value is None else known.get(value)
            given.append(None if read is None else read.select(_axis(node, "scan_input_axes", place), 0))
    pairs = [*zip(body.own, given, strict=False), *((inner, known.get(value)) for value, inner in body.outside)]
    if any(t is None for _, t in pairs) or len(given) != len(body.own):
        return None
    return {str(value.name): t for value, t in pairs if t is not None}
