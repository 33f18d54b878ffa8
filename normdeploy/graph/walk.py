"""All graphs of a model, and all operators, the bodies of control flow included.

onnx_ir's own iterators ask every attribute of every operator through three layers of Python; a rewriting, which walks
a graph some thirty times, spent a sixth of its time there.
"""

from __future__ import annotations

import onnx_ir as ir

_HOLDER = "normdeploy.holder"
_ONE, _SEVERAL = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS

HOLDING = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""The standard operators that hold graphs; of another domain any may."""


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs that an operator holds."""
    found: list[ir.Graph] = []
    if not node.domain and node.op_type not in HOLDING:
        return found
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is _ONE:
            found.append(attribute.as_graph())
        elif kind is _SEVERAL:
            found += attribute.as_graphs()
    return found


Returned = tuple[str | None, ...]
"""The names of what a body returns, by which it is known."""


def returned(body: ir.Graph) -> Returned:
    """Return what a body is known by."""
    return tuple(value.name for value in body.outputs)


def values_read(node: ir.Node) -> list[ir.Value]:
    """Return the values that an operator reads, those that its bodies read from around them included."""
    graphs = [graph for body in bodies_of(node) for graph in (body, *body.subgraphs())]
    inside = [value for graph in graphs for value in graph.outputs]
    inside += [value for graph in graphs for inner in graph for value in inner.inputs if value is not None]
    around = [value for value in inside if value.name and value.graph is node.graph]
    return [*(value for value in node.inputs if value is not None and value.name), *around]


def graphs_of(model: ir.Model) -> list[ir.Graph]:
    """Return the main graph and all bodies, each behind the one that holds it."""
    found = [model.graph]
    for graph in found:
        for node in graph:
            if node.domain or node.op_type in HOLDING:
                found += bodies_of(node)
    return found


def note_holders(model: ir.Model) -> None:
    """Note for each body which operator holds it, for :func:`holder_of`."""
    for node in nodes_of(model):
        for body in bodies_of(node):
            body.meta[_HOLDER] = node


def holder_of(graph: ir.Graph) -> ir.Node | None:
    """Return the operator that holds a body, where that was noted; None for the main graph."""
    held: ir.Node | None = graph.meta.get(_HOLDER)
    return held


def nodes_of(model: ir.Model) -> list[ir.Node]:
    """Return every operator in the order of its graph, what its bodies hold right behind it."""
    return nodes_in(model.graph)


def nodes_in(graph: ir.Graph) -> list[ir.Node]:
    """Return every operator of a graph, in its order, what its bodies hold right behind it."""
    found: list[ir.Node] = []

    def visit(part: ir.Graph) -> None:
        for node in part:
            found.append(node)
            if node.domain or node.op_type in HOLDING:
                for body in bodies_of(node):
                    visit(body)

    visit(graph)
    return found


def of_fixed_sizes(graph: ir.Graph) -> bool:
    """Tell whether a graph declares the sizes of all its inputs: it is run at these alone."""
    return all(value.shape is not None and value.shape.is_static() for value in graph.inputs)
