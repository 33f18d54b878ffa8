"""Pointwise operators between linear layers work on rows, as the layers do.

f(x) at a place depends on x at that place alone, so that over the same memory under another shape it is the same::

    Reshape(f(Reshape(r, [..., N])), [-1, N]) = f(r)

Operators that read one another, of values of one shape, change their shape together (:class:`Between`): a GELU spelled
out is half a dozen of them. They do where that leaves fewer Reshapes than it makes. What else they read is the same
for every row: one number, or one for each place of the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.edit import is_read, put_exact
from normdeploy.graph.exact import tensor64
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.lower.rows import Before, Rows, before_reshapes, renames, rows_there


@dataclass(frozen=True)
class Between:
    """Operators that read one another, of values of one shape.

    Args:
        nodes: the operators. lead, width: the leading sizes of their values, and the last one.
    """

    nodes: tuple[ir.Node, ...]
    lead: tuple[int, ...]
    width: int

    def gains(self, results: Collection[ir.Value], over_rows: Collection[ir.Node]) -> bool:
        """Tell whether there are fewer Reshapes where these operators work on rows.

        Args:
            results: of the layers, which are rows. over_rows: the layers' products and whatever else reads rows.
        """
        inside, ours = {node.outputs[0] for node in self.nodes}, set(self.nodes)
        as_rows = as_they_are = 0
        for value in self._read():
            others = [use.node for use in value.uses() if use.node not in ours]
            there = value in results or rows_there(value, self.lead, self.width) is not None
            if there or before_reshapes(value) is not value:  # a Reshape makes it, which leaves with its last reader
                as_they_are += all(reads_rows(node, over_rows) for node in others) and not value.is_graph_output()
            as_rows += not there and not any(node in over_rows for node in others)
        for value in inside:
            others = [use.node for use in value.uses() if use.node not in ours]
            as_they_are += any(node in over_rows or self._makes_rows(node) for node in others)
            as_rows += value.is_graph_output() or not all(reads_rows(node, over_rows) for node in others)
        return as_rows < as_they_are

    def _read(self) -> list[ir.Value]:
        """Return what they read from outside that is of their shape."""
        inside = {node.outputs[0] for node in self.nodes}
        read = (value for node in self.nodes for value in node.inputs)
        return [v for v in dict.fromkeys(read) if v is not None and v not in inside and _is_whole(v, self.shape)]

    def _makes_rows(self, node: ir.Node) -> bool:
        """Tell whether an operator makes rows of one of their values, and nothing else."""
        return renames(node) and node.outputs[0].shape == [math.prod(self.lead), self.width]

    @property
    def shape(self) -> list[int]:
        """Of their values."""
        return [*self.lead, self.width]


def reads_rows(node: ir.Node, over_rows: Collection[ir.Node]) -> bool:
    """Tell whether an operator reads rows as well: it works on them, or renames what it reads."""
    return node in over_rows or renames(node)


def between_layers(graph: ir.Graph, apart: Collection[ir.Node]) -> list[Between]:
    """Return the pointwise operators of a graph, those that read one another together.

    Args:
        graph: which. apart: operators that belong to layers.
    """
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in graph:
        shape = None if node in apart else _shape_of(node)
        if shape is None:
            continue
        own = [node]
        groups[node] = own
        for value in node.inputs:
            before = None if value is None or not _is_whole(value, shape) else value.producer()
            other = None if before is None else groups.get(before)
            if other is not None and other is not own:
                small, large = sorted((own, other), key=len)
                large += small
                groups.update(dict.fromkeys(small, large))
                own = large
    found = {id(nodes): nodes for nodes in groups.values()}
    return [_between(nodes) for nodes in found.values()]


def _between(nodes: list[ir.Node]) -> Between:
    shape = [size for size in nodes[0].outputs[0].shape or () if isinstance(size, int)]
    return Between(tuple(nodes), tuple(shape[:-1]), shape[-1])


def _shape_of(node: ir.Node) -> list[int] | None:
    """Return the shape of a pointwise operator's result that can be rows: known, and of several leading sizes."""
    if not has(node, Trait.POINTWISE) or has(node, Trait.KEEPS_ORDER) or is_read(*node.outputs[1:]):
        return None
    declared = node.outputs[0].shape
    shape = [] if declared is None else [size for size in declared if isinstance(size, int)]
    if declared is None or len(shape) < len(declared) or len(shape) < 3 or not math.prod(shape):
        return None
    read = [value for value in node.inputs if value is not None]
    whole = [value for value in read if _is_whole(value, shape)]
    return shape if whole and all(value in whole or _is_row(value, shape[-1]) for value in read) else None


def _is_whole(value: ir.Value | None, shape: list[int]) -> bool:
    return value is not None and value.shape == shape and constant_tensor(value) is None


def _is_row(value: ir.Value, width: int) -> bool:
    """Tell whether a value is a constant that is the same for every row."""
    tensor = constant_tensor(value)
    if tensor is None:
        return False
    sizes = tuple(int(size) for size in tensor.shape.numpy())
    if math.prod(sizes[:-1]) != 1 or (sizes and sizes[-1] not in (1, width)):
        return False
    return len(sizes) <= 2 or tensor.dtype in FLOATS


def write_over_rows(between: Between, node: ir.Node, rows: Rows, graph: ir.Graph) -> None:
    """Write one of the operators over rows."""
    new = Before(graph, node)
    read = [_over_rows(between, value, rows, new) for value in node.inputs]
    found = new.add(node.op_type, read, "by_rows", node.name, list(node.attributes.values()), domain=node.domain)
    found.type = node.outputs[0].type
    source = next(v for v in node.inputs if v is not None and _is_whole(v, between.shape))
    rows.give_back(found, node.outputs[0], source, between.lead, between.width, new)
    graph.remove(node, safe=True)


def _over_rows(between: Between, value: ir.Value | None, rows: Rows, new: Before) -> ir.Value | None:
    if value is None:
        return None
    if _is_whole(value, between.shape):
        return rows.of(value, between.lead, between.width, new)
    return _in_two_axes(value, new.graph)


def _in_two_axes(value: ir.Value, graph: ir.Graph) -> ir.Value:
    """Return a constant that makes no result of more than two axes."""
    tensor = constant_tensor(value)
    if tensor is None or len(tensor.shape) <= 2:
        return value
    return put_exact(
        graph, lambda: tensor64(tensor).reshape(tensor.size), (tensor.size,), tensor.dtype, str(value.name)
    )
