"""Tables of which sizes decide the part that is read: the rows of positions, a mask cut to a length.

What follows from sizes alone is compared at a few assignments of them. At these a part of such a table is read, at
others the rest: the whole table has to be what the source's is, as if what is fed decided what is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from normdeploy.graph.traits import is_standard

_PICKS = frozenset({"Slice", "Gather", "GatherElements", "GatherND", "Compress"})
"""Operators whose other operands decide which elements of the first are in the result."""


def picked(node: ir.Node, stays: Callable[[ir.Value], bool]) -> bool:
    """Tell whether an operator reads what is always the same at places that are not.

    Args:
        node: the operator. stays: whether a value is the same at all sizes.
    """
    if not is_standard(node) or node.op_type not in _PICKS:
        return False
    table, *places = node.inputs
    if table is None or not stays(table):
        return False
    return any(value is not None and bool(value.name) and not stays(value) for value in places)


def partly_read(nodes: Sequence[ir.Node], follows: set[ir.Value], stays: Callable[[ir.Value], bool]) -> set[ir.Value]:
    """Return, of values that follow from sizes, those whose numbers come from a table read in part.

    Args:
        nodes: of the graph, in order. follows: the values. stays: whether a value is the same at all sizes.
    """
    found: set[ir.Value] = set()
    for node in nodes:
        if is_standard(node) and node.op_type in ("Shape", "Size"):
            continue  # how much is read, not what
        if picked(node, stays) or any(value in found for value in node.inputs if value is not None):
            found.update(value for value in node.outputs if value in follows)
    return found
