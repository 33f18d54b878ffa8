"""Operators of evaluation that torch's second trace writes as one other, and how that one reads.

With x ``[batch, channels, height, width]``::

    batch_norm(x, w, b, m, v, training=False) = _native_batch_norm_legit_no_training(x, w, b, m, v)[0]
    adaptive_avg_pool2d(x, (1, 1)) = mean(x, (-1, -2), keepdim=True)
    flatten(x, start, end) = view(x, sizes)
    dropout(x, p, train=False) = clone(x)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

aten = torch.ops.aten
BATCH_NORM = aten.batch_norm.default
_BATCH_NORM_ALONE = aten._native_batch_norm_legit_no_training.default
_BATCH_NORM_RESULTS = 3
"""Results of the operator in its place; torch counts a node for each, though only the first is read."""

_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""Where torch says that a node is of no module."""


@dataclass(frozen=True)
class Retraced:
    """An operator that another stands for.

    Args:
        holds: whether it does for a node.
        write: makes the node in its place, given the graph, the node and the number of such operators before it.
    """

    holds: Callable[[Any], bool]  # torch types a node's arguments as all that they may ever be
    write: Callable[[Graph, Any, int], Node]


def write_retraced(program: ExportedProgram) -> None:
    """Put the other operators in their place, each with the name that a trace gives it."""
    graph, counts = program.graph, dict.fromkeys(RETRACED, 0)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in RETRACED:
            continue
        with graph.inserting_before(node):
            other = RETRACED[node.target].write(graph, node, counts[node.target])
        counts[node.target] += 1
        for reader in list(node.users):
            reader.replace_input_with(node, other)
            if reader.op == "output":  # for others the signature, as long as the weights are many, is not walked
                program.graph_signature.replace_all_uses(node.name, other.name)
        graph.erase_node(node)


def _call(graph: Graph, like: Node, target: Any, args: tuple[Any, ...], name: str | None = None) -> Node:
    node = graph.create_node("call_function", target, args, name=name or target._schema.name.partition("::")[2])
    node.meta = dict(like.meta)
    return node


def _batch_norm_holds(node: Any) -> bool:
    _, _, _, mean, variance, training, *_ = node.args
    return training is False and mean is not None and variance is not None


def _batch_norm(graph: Graph, node: Any, before: int) -> Node:
    x, weight, bias, mean, variance, _, momentum, eps, *_ = node.args
    whole = _call(graph, node, _BATCH_NORM_ALONE, (x, weight, bias, mean, variance, momentum, eps))
    value = node.meta["val"]
    whole.meta["val"] = (value, *[value.new_empty(0)] * (_BATCH_NORM_RESULTS - 1))
    name = f"getitem_{_BATCH_NORM_RESULTS * before}" if before else "getitem"
    return _call(graph, node, operator.getitem, (whole, 0), name)


def _pool_holds(node: Any) -> bool:
    return list(node.args[1:]) == [[1, 1]]


def _pool(graph: Graph, node: Any, _before: int) -> Node:
    return _call(graph, node, aten.mean.dim, (node.args[0], [-1, -2], True))


def _dropout_holds(node: Any) -> bool:
    return node.args[2] is False


def _dropout(graph: Graph, node: Any, _before: int) -> Node:
    return _call(graph, node, aten.clone.default, node.args[:1])


def _flatten_holds(node: Any) -> bool:
    """Whether what is flattened lies in one piece, and each size of the result is a number or one of an input."""
    (x, *_), made = node.args, node.meta["val"]
    given = x.meta["val"]
    return (
        made.ndim < given.ndim
        and torch._prims_common.is_contiguous_or_false(given)
        and all(isinstance(size, int) or _input_of(node.graph, size) is not None for size in made.shape)
    )


def _flatten(graph: Graph, node: Any, _before: int) -> Node:
    sizes = [size if isinstance(size, int) else _size_node(graph, size) for size in node.meta["val"].shape]
    return _call(graph, node, aten.view.default, (node.args[0], sizes))


def _input_of(graph: Graph, size: torch.SymInt) -> tuple[Node, int] | None:
    """Return the first input, and its dimension, that is as long as a symbol says; None where a size is computed."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes: tuple[Any, ...] = value.shape if isinstance(value, torch.Tensor) else ()  # torch types them as numbers
        for axis, other in enumerate(sizes):
            if isinstance(other, torch.SymInt) and other.node.expr == size.node.expr:
                return node, axis
    return None


def _size_node(graph: Graph, size: torch.SymInt) -> Node:
    """Return the node that asks an input for its size, made in front of the first operator."""
    found = _input_of(graph, size)
    assert found is not None  # it is where this operator was found to hold
    for user in found[0].users:
        if user.target is aten.sym_size.int and user.args == found:
            return user
    operators = [node for node in graph.nodes if node.op != "placeholder"]
    first = next(node for node in operators if node.target is not aten.sym_size.int)
    with graph.inserting_before(first):
        node = graph.create_node("call_function", aten.sym_size.int, found, name="sym_size_int_1")
    node.meta = {"val": size, "nn_module_stack": {_NO_MODULE: (_NO_MODULE, _NO_MODULE)}}
    return node


RETRACED: Mapping[Any, Retraced] = {
    BATCH_NORM: Retraced(_batch_norm_holds, _batch_norm),
    aten.adaptive_avg_pool2d.default: Retraced(_pool_holds, _pool),
    aten.dropout.default: Retraced(_dropout_holds, _dropout),
    aten.flatten.using_ints: Retraced(_flatten_holds, _flatten),
}
