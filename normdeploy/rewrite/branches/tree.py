"""Sums as trees: Add, Sub and Sum nodes that only feed each other, flattened into signed leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import onnx_ir as ir
from torch import Tensor

from normdeploy.graph.edit import only_reader
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.rewrite_context import RewriteContext

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


def is_sum(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Tell whether a node adds or subtracts."""
    return has(node, Trait.ADDS) and not is_standard(node, "Mean") and len(node.inputs) > 1


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
            if (
                producer is not None
                and producer.graph is node.graph
                and is_sum(producer)
                and only_reader(value) is current
            ):
                stack.append((producer, own))
            else:
                leaves.append(Leaf(value, own, current))
        if len(leaves) > MAX_LEAVES:
            return None
    return Tree(node, tuple(reversed(nodes)), tuple(leaves))


def _is_inner(node: ir.Node) -> bool:
    result = node.outputs[0]
    reader = only_reader(result)
    return reader is not None and is_sum(reader) and reader.graph is node.graph


def one_number_each(context: RewriteContext, leaves: Sequence[Leaf], rank: int) -> dict[ir.Value, Tensor]:
    """Draw what leaves are in a check: one number is enough to show a sign, whatever the shape."""
    return {value: context.normal([1] * rank) for value in dict.fromkeys(leaf.value for leaf in leaves)}


def rebuild(region: Region, root: ir.Node, merged: ir.Value, rest: Sequence[Leaf], *, after: ir.Node) -> ir.Value:
    """Add the leaves that were not merged to the one value that replaces the others; return the sum."""
    total = merged
    for leaf in rest:
        op_type = "Add" if leaf.sign > 0 else "Sub"
        after = region.insert(op_type, [total, leaf.value], after=after, like=root.outputs[0])
        after.name = None if root.name is None else after.name
        total = after.outputs[0]
    return total
