"""Weights that a module computes at every call by what ONNX has no form of: their value goes into the file.

``torch.nn.utils.parametrizations.orthogonal`` computes a weight by a matrix exponential or by solving a system, an
invertible convolution its inverse, a Gaussian layer the factor of a covariance. In evaluation that is a constant: it
depends on parameters and buffers alone. Where such an operator has a translation, it stays, so that the rewriting rooms
see what the author wrote; where it has none, its result stands in its place: computed in float64, rounded once.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map

from normdeploy.graph.scopes import module_of_node
from normdeploy.nn.promoted import promoted

_NOTES = "normdeploy.computed_weights"


def keep_computed_weights(program: ExportedProgram, translated: Collection[Any]) -> None:
    """Put values in the place of operators that have no translation and read nothing but weights.

    Args:
        program: a program as it is translated next, changed in place.
        translated: the operators that have a translation.
    """
    if any(node.target is torch.ops.higher_order.with_effects for node in program.graph.nodes):
        # torch orders its checks of matrices by tokens, of which ONNX has none; its own name, so not asked for in vain
        from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

        _remove_effect_tokens(program)
    values = _weights(program)
    constant, wanted = set(values), list[Node]()
    for node in program.graph.nodes:
        if node.op != "call_function" or not set(node.all_input_nodes) <= constant or not _depends_on_these(node):
            continue
        constant.add(node)
        if node.target not in translated and node.target is not operator.getitem:
            wanted.append(node)
    for node in reversed(wanted):  # what only such an operator reads is not read any more
        if node.users:
            _keep(program, node, values)
        elif node.target is torch.ops.aten._linalg_check_errors.default:
            program.graph.erase_node(node)  # eager torch has run it on these very weights
    if wanted:
        program.graph.eliminate_dead_code()


def kept_values(program: ExportedProgram) -> list[str]:
    """Return a sentence for each operator that a value stands in the place of."""
    return list(program.graph_module.meta.get(_NOTES, ()))


def _weights(program: ExportedProgram) -> dict[Node, Any]:
    """Return the parameters, buffers and constants that a program reads and does not write."""
    signature, found = program.graph_signature, dict[Node, Any]()
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in signature.input_specs:
        held = program.state_dict if spec.target in program.state_dict else program.constants
        if spec.kind is InputKind.USER_INPUT or spec.target in signature.buffers_to_mutate.values():
            continue
        if spec.target in held and isinstance(spec.arg, TensorArgument):
            found[placeholders[spec.arg.name]] = held[spec.target]
    return found


def _depends_on_these(node: Node) -> bool:
    """Whether an operator's result follows from its operands, and it writes nothing."""
    target: Any = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags


def _keep(program: ExportedProgram, node: Node, values: dict[Node, Any]) -> None:
    """Let constants stand for all that is read of an operator's results."""
    where, module = module_of_node(node)
    operation = str(node.target).removeprefix("aten.").removesuffix(".default").strip("_")
    with torch.no_grad():
        value = _value(node, values)
    parts = {node: value}
    if not isinstance(value, torch.Tensor):
        parts = {user: values.setdefault(user, value[user.args[1]]) for user in node.users}
    for part, tensor in parts.items():
        named = f"{operation}_{part.args[1]}" if part is not node else operation
        _write(program, part, tensor, f"{where}.{named}" if where else named)
    program.graph_module.meta.setdefault(_NOTES, []).append(
        f"{where or 'the model'} ({module}) computes a weight by {operation}, which has no ONNX form: "
        "the file holds its value"
    )


def _value(node: Node, values: dict[Node, Any]) -> Any:
    """Return what a node computes. Args: values: of nodes that are known; what is computed is added."""
    waiting = [node]
    while waiting:
        last = waiting[-1]
        missing = [one for one in last.all_input_nodes if one not in values]
        waiting += missing
        if not missing:
            args, kwargs = tree_map(promoted, map_arg((last.args, last.kwargs), values.__getitem__))
            target: Any = last.target
            values[last] = target(*args, **kwargs)
            waiting.pop()
    return values[node]


def _write(program: ExportedProgram, node: Node, value: torch.Tensor, name: str) -> None:
    """Let a constant of the program stand for a node. Args: name: of the constant in the file."""
    graph, signature = program.graph, program.graph_signature
    if name in program.constants or name in program.state_dict:
        name = f"{name}_{node.name}"
    with graph.inserting_before(next(iter(graph.find_nodes(op="placeholder")))):
        constant = graph.placeholder(f"computed_{node.name}")
    constant.meta = dict(node.meta)
    program.constants[name] = value.detach().to(node.meta["val"].dtype, copy=True)
    signature.input_specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(constant.name), name, None))
    for reader in list(node.users):
        reader.replace_input_with(node, constant)
    signature.replace_all_uses(node.name, constant.name)
