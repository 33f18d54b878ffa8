"""What a traced graph's constants hold, and its group norms, which it spells out in a norm, a scale and a shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor

from normdeploy.graph import FLOATS, Evaluator, evaluate_node
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.traits import is_standard
from normdeploy.verification.mutation.mutants import INSTANCE_NORM, is_norm, opsets
from normdeploy.verification.mutation.watched_sites import values_of

_ARRANGES = ("Expand", "Unsqueeze", "Reshape", "Identity")
"""What arranges the numbers of a constant that was given the type of a computed value."""


def constants_of_graph(evaluator: Evaluator) -> dict[str, Tensor]:
    """Return the floats of a graph that follow from constants alone and are of moderate size, by name.

    A constant that is given the type of what is computed is one too, where that type holds each of its numbers.
    """
    graph = evaluator.graph
    fixed = fixed_nodes(graph).by_constants
    inputs = {str(value.name) for value in graph.inputs}

    def follows(value: ir.Value | None) -> bool:
        if value is None or not value.name or value.name in inputs:
            return False
        return value.producer() in fixed if value.producer() is not None else value.is_initializer()

    def known(step: ir.Node) -> bool:
        return all(follows(one) or _stated(one) is not None for one in _others(step))

    ways: dict[str, tuple[str, list[ir.Node]]] = {}
    wanted: set[str] = set()
    for node in graph:
        if node in fixed or not (is_standard(node, "Mul", "Add", "Div", "Sub") or is_norm(node)):
            continue  # what makes a weight, of however many numbers, scales nothing that is fed
        for value in node.inputs:
            at, way = value, list[ir.Node]()
            while at is not None and not follows(at):
                step = at.producer()
                if step is None or not is_standard(step, "CastLike", *_ARRANGES):
                    break
                way += [step] if way or not _repeats(step, node) or known(step) else []
                at = step.inputs[0]
            if value is None or at is None or not follows(at):
                continue
            if all(known(step) for step in way):
                others = [one for step in way for one in _others(step)]
                ways[str(value.name)] = str(at.name), way
                wanted |= {str(at.name), *(str(one.name) for one in others if one is not None and follows(one))}
    found = values_of(evaluator, wanted)
    held = {name: _arranged(found[start], way, found) for name, (start, way) in ways.items()}
    return {name: value for name, value in held.items() if value is not None and value.dtype == torch.float64}


def _others(step: ir.Node) -> Sequence[ir.Value | None]:
    """Return what an operator reads besides a number and its type."""
    return [] if step.op_type == "CastLike" else step.inputs[1:]


def _repeats(step: ir.Node, reader: ir.Node) -> bool:
    """Tell whether an operator repeats a number as often as its reader does anyway."""
    return is_standard(step, "Expand") and not is_norm(reader)


def _stated(value: ir.Value | None) -> Tensor | None:
    """Return the sizes that a Shape reads, where the graph states them."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Shape") or node.inputs[0] is None or node.inputs[0].shape is None:
        return None
    sizes = list(node.inputs[0].shape)
    sizes = sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))]
    known = [size for size in sizes if isinstance(size, int)]
    return torch.tensor(known) if len(known) == len(sizes) else None


def _arranged(number: Tensor, way: list[ir.Node], found: Mapping[str, Tensor]) -> Tensor | None:
    """Return what becomes of a constant; None where the type that it is given cannot hold it."""
    for step in reversed(way):
        if step.op_type == "CastLike":
            like = step.inputs[1]
            if number.dtype != torch.float64 or not _holds(_type(like), number):
                return None
            continue
        others = [None if one is None else found.get(str(one.name), _stated(one)) for one in step.inputs[1:]]
        number = evaluate_node(step, [number, *others], opset_imports=opsets(step))[0]
    return number


def _type(value: ir.Value | None) -> ir.DataType | None:
    """Return a value's type, or that of what it is computed from, where an operator on the way keeps it."""
    while value is not None and value.dtype is None:
        node = value.producer()
        keeps = node is not None and is_standard(node, *_ARRANGES, INSTANCE_NORM, "Mul", "Add")
        value = node.inputs[0] if node is not None and keeps else None
    return None if value is None else value.dtype


def _holds(kind: ir.DataType | None, number: Tensor) -> bool:
    """Tell whether numbers are the same in a type of floats."""
    return kind in FLOATS and torch.equal(number.to(to_torch_dtype(kind)).double(), number)


@dataclass(frozen=True)
class GroupNorm:
    """A group norm as a traced graph spells it out: groups are normalized, then the channels scaled and shifted.

    Args:
        node: normalizes each group as one channel. scale, shift: what follows; None where nothing does.
        plain: names of what is normalized, not yet scaled. scaled: name of the result.
    """

    node: ir.Node
    scale: Tensor | None
    shift: Tensor | None
    plain: tuple[str, ...]
    scaled: str


def group_norms(graph: ir.Graph, constants: Mapping[str, Tensor]) -> dict[str, GroupNorm]:
    """Return the group norms of a graph by the names of what they make."""
    found: dict[str, GroupNorm] = {}
    for node in graph:
        whole = only_use(node.outputs[0]) if is_standard(node, INSTANCE_NORM) else None
        if whole is None or not is_standard(whole, "Reshape"):
            continue
        scale, at = _operand(whole.outputs[0], "Mul", constants)
        shift, at = _operand(at, "Add", constants)
        plain = str(node.outputs[0].name), str(whole.outputs[0].name)
        group = GroupNorm(node, scale, shift, plain, str(at.name))
        found |= dict.fromkeys((*plain, group.scaled), group)
    return found


def _operand(value: ir.Value, kind: str, constants: Mapping[str, Tensor]) -> tuple[Tensor | None, ir.Value]:
    """Return the constant that the only reader of a value scales or shifts it by, and its result."""
    node = only_use(value)
    if node is None or not is_standard(node, kind):
        return None, value
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    held = None if other is None else constants.get(str(other.name))
    return (None, value) if held is None else (held, node.outputs[0])


def only_use(value: ir.Value) -> ir.Node | None:
    """Return the one operator that reads a value's numbers; None where more do, none does, or they leave the graph."""
    uses = [node for node, place in value.uses() if not (place == 1 and is_standard(node, "CastLike"))]
    return uses[0] if len(uses) == 1 and not value.is_graph_output() else None
