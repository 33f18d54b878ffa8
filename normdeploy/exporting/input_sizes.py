"""The sizes of a traced program's inputs, and the nodes that ask for them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""Where torch says that a node is of no module."""


def input_of(graph: Graph, size: torch.SymInt) -> tuple[Node, int] | None:
    """Return the first input, and its dimension, that is as long as a symbol says; None where a size is computed."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes: tuple[Any, ...] = value.shape if isinstance(value, torch.Tensor) else ()  # torch types them as numbers
        for axis, other in enumerate(sizes):
            if isinstance(other, torch.SymInt) and other.node.expr == size.node.expr:
                return node, axis
    return None


def size_node(graph: Graph, size: torch.SymInt) -> Node:
    """Return the node that asks an input for its size, made in front of the first operator."""
    found = input_of(graph, size)
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
