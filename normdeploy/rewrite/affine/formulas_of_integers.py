"""Formulas of integers that end in integers: which of a few buckets a distance falls into.

``(log(distance / 8) / log(16) * 8).long()`` meets whole numbers, at 16 and 32 and 64, and which of two integers comes
out there is a matter of the last bit. Two constants written as one round otherwise, so nothing of such a formula is a
map to be moved. What is computed of floats meets no such number but by chance.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import FLOATS, constant_tensor, is_constant
from normdeploy.graph.traits import Trait, has, is_standard

REASON = (
    "of integers it computes what is cut to integers again: rounded otherwise, as in one step with what is beside it, "
    "that may be another"
)
"""Why an operator of such a formula stays as it is."""

_MOVE = Trait.POINTWISE | Trait.MOVES | Trait.KEEPS_ORDER


def formulas_of_integers(graph: ir.Graph) -> set[ir.Node]:
    """Return the operators on floats that follow from integers alone, number by number, and lead to integers.

    Args:
        graph: its nodes in topological order, with the types of what they compute; what has none is not followed.
    """
    of_integers = [node for node in graph if _is_float(node.outputs[0]) and _follows(node)]
    followed: set[ir.Node] = set()
    for node in of_integers:
        made = [value.producer() for value in node.inputs if value is not None and _is_float(value)]
        if all(maker is None or maker in followed for maker in made):
            followed.add(node)
    found: set[ir.Node] = set()
    for node in reversed(of_integers):
        if node in followed and any(_cuts(reader) or reader in found for reader in node.outputs[0].consumers()):
            found.add(node)
    return found


def _follows(node: ir.Node) -> bool:
    """Tell whether a result is made of integers, of floats that operators made, and of constants of one number each."""
    read = [value for value in node.inputs if value is not None]
    computed = [value for value in read if not is_constant(value)]
    if not computed or not (has(node, _MOVE) or is_standard(node, "Range", "Cast")):
        return False
    held = [constant_tensor(value) for value in read if _is_float(value)]
    if any(tensor is not None and tensor.size != 1 for tensor in held):
        return False  # a table that integers choose from, or what differs from channel to channel
    return all(value.dtype is not None and not (_is_float(value) and value.producer() is None) for value in computed)


def _cuts(node: ir.Node) -> bool:
    result = node.outputs[0]
    return has(node, Trait.DECIDES) or (
        is_standard(node, "Cast") and result.dtype is not None and result.dtype not in FLOATS
    )


def _is_float(value: ir.Value) -> bool:
    return value.dtype in FLOATS
