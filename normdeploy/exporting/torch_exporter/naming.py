"""Names in the traced graph: inputs and outputs as asked, tensors of plain objects by their path in the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common
import torch
from torch import nn

from normdeploy.errors import InputError
from normdeploy.graph.scopes import NAME_SCOPES, WHERE
from normdeploy.graph.walk import bodies_of
from normdeploy.nn.object_walk import unregistered_tensors

_OF_A_FUNCTION = re.compile(r"n\d+(_\d+)*")
"""What operators are called that the exporter takes from a function of its library."""


def _all_values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        values |= {str(value.name): value for value in node.outputs if value.name}
    return values


def _fresh(name: str, taken: dict[str, ir.Value]) -> str:
    number, unique = 1, name
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def give_names_once(model: ir.Model) -> None:
    """Give every value of a traced graph a name of its own; a weight keeps its path in the model.

    torch's exporter names a weight by its path and an operator's result by the operator, and leaves it to its optimizer
    to tell them apart: a buffer ``mean`` and the result of ``x.mean(1)`` were one name.
    """
    graph = model.graph
    weights = {value.name: value for value in graph.initializers.values()}
    for value in graph.outputs:  # the pass lets these come before weights; inputs are named apart before the trace
        if weights.get(value.name, value) is not value:
            value.name = _fresh(str(value.name), _all_values(graph))
    for node in graph:
        if _OF_A_FUNCTION.fullmatch(node.name or ""):  # it would be taken for a module's name
            node.name = f"node_{node.outputs[0].name}"
    common.NameFixPass()(model)


def rename_values(graph: ir.Graph, values: Sequence[ir.Value], names: Sequence[str], *, what: str, given: bool) -> None:
    """Rename inputs or outputs; an inner value that has the name already takes another.

    Args:
        graph: the graph, changed in place.
        values: its inputs or its outputs.
        names: one per value.
        what: "input" or "output", for messages.
        given: whether the user chose the names; a clash is then theirs to solve, otherwise a number is appended.

    Raises:
        InputError: wrong number of names, a name twice, or one that an input or weight has.
    """
    if len(names) != len(values):
        raise InputError(
            f"{len(names)} {what} names {list(names)}; expected {len(values)}, for {[value.name for value in values]}: "
            "name each one"
        )
    for value, name in zip(values, names, strict=True):
        if value.name == name:
            continue
        taken = _all_values(graph)
        other = taken.get(name)
        if other is not None:
            fixed = any(other is kept for kept in (*graph.inputs, *graph.outputs, *graph.initializers.values()))
            if fixed and given:
                raise InputError(f"{what} name {name!r} is used by another input, output or weight; choose another")
            if fixed:
                value.name = _fresh(name, taken)
                continue
            other.name = _fresh(name, taken)
        value.name = name


def separate_outputs(graph: ir.Graph) -> None:
    """Give every output a value of its own: one that is an input, a weight or another output gets an Identity."""
    seen: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    for position, value in enumerate(list(graph.outputs)):
        if value in seen:
            copy = ir.node("Identity", [value])
            output = copy.outputs[0]
            output.name, output.shape, output.type = (
                _fresh(f"{value.name}_out", _all_values(graph)),
                value.shape,
                value.type,
            )
            graph.append(copy)
            graph.outputs[position] = output
        seen.add(value)


def name_plain_tensors(graph: ir.Graph, constants: dict[str, torch.Tensor], model: nn.Module) -> dict[str, str]:
    """Name the initializers that hold tensors of plain objects by their path in the model, and say so on their nodes.

    ``torch.export`` lifts tensors it finds no registration for as ``lifted_tensor_0``, ``lifted_tensor_1``, ...; they
    are recognised here by their memory. Nodes that read such a tensor (or an expression of such tensors only) get the
    holder's path as ``normdeploy.where``: torch records no scope for plain objects. Nor does it for what branches of
    ``torch.cond`` and bodies of loops compute: there, whose weights a node reads is said of all weights.

    Args:
        graph: the traced graph, changed in place.
        constants: the exported program's constants by initializer name.
        model: the eager model.

    Returns:
        path -> name of the initializer that holds it.
    """
    paths: dict[tuple[object, ...], str] = {}
    for path, tensor in unregistered_tensors(model).items():
        paths.setdefault(_memory(tensor), path)
    named: dict[str, str] = {}
    holders: dict[ir.Value, str] = {}
    for name, tensor in constants.items():
        value = graph.initializers.get(name)
        found = paths.get(_memory(tensor))
        if value is None or found is None:
            continue
        if value.name != found:
            value.name = _fresh(found, _all_values(graph))
        named[found] = str(value.name)
        holders[value] = found.rpartition(".")[0]
    _mark_holders(graph, holders)
    weights = {graph.initializers.get(name): name.rpartition(".")[0] for name in _registered(model)}
    _mark_in_bodies(graph, {value: holder for value, holder in weights.items() if value is not None} | holders)
    return named


def _registered(model: nn.Module) -> list[str]:
    return [name for name, _ in (*model.named_parameters(), *model.named_buffers())]


def _mark_in_bodies(graph: ir.Graph, holders: dict[ir.Value, str]) -> None:
    for node in graph:
        for body in bodies_of(node):
            read = {value for inner in body for value in inner.inputs}
            _mark_holders(body, {value: holder for value, holder in holders.items() if value in read})
            _mark_in_bodies(body, holders)


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.numel() == 0 or tensor.layout is not torch.strided:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device)


def _mark_holders(graph: ir.Graph, holders: dict[ir.Value, str]) -> None:
    constant = dict.fromkeys(graph.initializers.values(), "") | holders
    for node in graph:
        if node.op_type == "Constant":
            constant[node.outputs[0]] = ""
            continue
        inputs = [value for value in node.inputs if value is not None]
        found = [constant[value] for value in inputs if constant.get(value)]
        if found and WHERE not in node.metadata_props:
            node.metadata_props[WHERE] = found[0]
        if inputs and all(value in constant for value in inputs):
            for output in node.outputs:
                constant[output] = found[0] if found else ""
    for holder in dict.fromkeys(holders.values()):
        _mark_statistics(graph, holder)


def _mark_statistics(graph: ir.Graph, holder: str) -> None:
    """Mark the nodes that compute the statistics of a plain object's normalization, which read none of its tensors.

    Looked for backwards, from the nodes that are marked through nodes that only marked nodes read. Of these belong to
    it what comes after a reduction, and what leads to reductions only; what both a reduction and others read is its
    input, and belongs to whoever computed it.
    """
    marked = [node for node in graph if node.metadata_props.get(WHERE) == holder]
    scopes = {node.metadata_props.get(NAME_SCOPES, "").rpartition(",")[0] for node in marked}
    inside = set(marked)
    candidates: list[ir.Node] = []
    for node in reversed(graph):
        if node in inside or WHERE in node.metadata_props:
            continue
        readers = {use.node for value in node.outputs for use in value.uses()}
        # the exporter's own helper nodes (shapes) have no scope
        scope = node.metadata_props.get(NAME_SCOPES, "").rpartition(",")[0]
        if readers and readers <= inside and (not scope or scope in scopes):
            inside.add(node)
            candidates.append(node)
    reductions = {node for node in candidates if node.op_type.startswith("Reduce")}
    ahead: set[ir.Node] = set()
    for node in candidates:  # last first: readers are known before what they read
        readers = {use.node for value in node.outputs for use in value.uses()}
        if node not in reductions and readers <= reductions | ahead:
            ahead.add(node)
    behind: set[ir.Node] = set()
    for node in reversed(candidates):
        if any(value is not None and value.producer() in reductions | behind for value in node.inputs):
            behind.add(node)
    for node in reductions | ahead | behind:
        node.metadata_props[WHERE] = holder
