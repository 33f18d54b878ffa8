"""What is said and asked of operators: their names in sentences, and who reads a value."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import module_path
from normdeploy.graph.walk import holder_of
from normdeploy.rewrite.affine.affine_node import origins_of
from normdeploy.rewrite.affine.replacement import reads_shape_only


def describe(node: ir.Node) -> str:
    """Return how a sentence names an operator: its type, and where it stands in the user's model."""
    where, origins = module_path(node), origins_of(node)
    what = origins[0].kind if origins else node.op_type  # an Affine is called what its author wrote
    return f"{what} '{where}'" if where else what


def describe_end(value: ir.Value, graph: ir.Graph, end: str) -> str:
    """Return how a sentence names an ``end`` ("input", "output") of a graph, or of a body."""
    holder = holder_of(graph)
    name = f"{end} '{value.name}'"
    return f"the graph {name}" if holder is None else f"the {name} of a body of {describe(holder)}"


def readers(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read what ``value`` holds (not its shape only), each once."""
    users = dict.fromkeys(usage.node for usage in value.uses())
    return [node for node in users if not reads_shape_only(node)]
