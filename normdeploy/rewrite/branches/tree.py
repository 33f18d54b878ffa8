"""Sums as trees: Add, Sub and Sum nodes that only feed each other, flattened into signed leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import onnx_ir as ir

from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.affine.region import Region
from normdeploy.rewrite.branches.chain import alone

_SUMS = frozenset({"Add", "Sub", "Sum"})
MAX_LEAVES = 64


@dataclass(frozen=True)
class Leaf:
    """One operand of a sum.

    Args:
        value: the operand.
        sign: +1 or -1.
        reader: the node of the tree that reads it.
    """

    value: ir.Value
    sign: float
    reader: ir.Node


@dataclass(frozen=True)
class Tree:
    """A sum of leaves.

    Args:
        root: the node whose result is the sum.
        nodes: all its nodes, operands before users.
        leaves: its operands, left to right.
    """

    root: ir.Node
    nodes: tuple[ir.Node, ...]
    leaves: tuple[Leaf, ...]


class Reading(Protocol):
    """One way to read a leaf: as linear operators of a value."""

    @property
    def source(self) -> ir.Value:
        """The value they are applied to."""
        ...


R = TypeVar("R", bound=Reading)


def sharing_a_source(tree: Tree, readings: Sequence[Sequence[R]]) -> Iterator[list[tuple[Leaf, R]]]:
    """Yield the leaves that can be read as operators of one value, two at least; the most shared value comes first.

    Args:
        tree: the sum.
        readings: the ways to read each of its leaves; of several with one source the first counts.
    """
    sources = Counter(source for found in readings for source in {item.source for item in found})
    for source, count in sources.most_common():
        if count < 2:
            return
        yield [
            (leaf, next(item for item in found if item.source is source))
            for leaf, found in zip(tree.leaves, readings, strict=True)
            if any(item.source is source for item in found)
        ]


def is_sum(node: ir.Node | None) -> bool:
    """Tell whether a node adds or subtracts."""
    return node is not None and node.op_type in _SUMS and node.domain in ("", "ai.onnx") and len(node.inputs) > 1


def tree_at(node: ir.Node) -> Tree | None:
    """Return the sum whose root is ``node``; None if ``node`` is an inner node of a larger one, or none at all."""
    if not is_sum(node) or _is_inner(node):
        return None
    nodes: list[ir.Node] = []
    leaves: list[Leaf] = []
    stack: list[tuple[ir.Node, float]] = [(node, 1.0)]
    while stack:
        current, sign = stack.pop()
        nodes.append(current)
        for index in range(len(current.inputs)):
            value = required(current, index)
            own = -sign if current.op_type == "Sub" and index == 1 else sign
            producer = value.producer()
            if producer is not None and producer.graph is node.graph and is_sum(producer) and alone(value, current):
                stack.append((producer, own))
            else:
                leaves.append(Leaf(value, own, current))
        if len(leaves) > MAX_LEAVES:
            return None
    return Tree(node, tuple(reversed(nodes)), tuple(leaves))


def _is_inner(node: ir.Node) -> bool:
    result = node.outputs[0]
    if not alone(result):
        return False
    reader = next(iter(result.uses())).node
    return is_sum(reader) and reader.graph is node.graph


def rebuild(region: Region, tree: Tree, merged: ir.Value, rest: Sequence[Leaf], *, after: ir.Node) -> ir.Value:
    """Add the leaves that were not merged to the one value that replaces the others; return the sum."""
    total = merged
    for leaf in rest:
        op_type = "Add" if leaf.sign > 0 else "Sub"
        total = region.insert(op_type, [total, leaf.value], after=after, like=tree.root.outputs[0]).outputs[0]
        producer = total.producer()
        assert producer is not None
        producer.name = None if tree.root.name is None else producer.name
        after = producer
    return total
