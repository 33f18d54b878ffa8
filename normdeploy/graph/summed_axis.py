"""Along which axis a value's elements sum to one: as Softmax writes them, turned and viewed since.

What averages by such weights passes any shift that is one for all it averages: sum_k a_k (v_k + t) = sum_k a_k v_k + t.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import is_standard

Ranks = Callable[[ir.Value], int | None]
"""How many axes a value has; None where that is not known."""

_SUMS_ALONG_AXIS = 13
"""From this operator set on, Softmax looks at one axis."""

_LONGEST = 12
"""How many movements in a row are looked through."""


def declared_rank(value: ir.Value) -> int | None:
    """Return how many axes a graph says that a value has."""
    return None if value.shape is None else len(value.shape)


def summed_axis(
    value: ir.Value | None, ranks: Ranks = declared_rank, opset: Callable[[ir.Node], int] | None = None
) -> int | None:
    """Return the axis along which a value sums to one, counted from the end; None where none is known.

    Args:
        value: which. ranks: of values.
        opset: of an operator, where that may be below 13; there Softmax sums over several axes at once.
    """
    moves: list[ir.Node] = []
    while (node := None if value is None else value.producer()) is not None and len(moves) < _LONGEST:
        if is_standard(node, "Softmax"):
            break
        if not is_standard(node, "Transpose", "Unsqueeze", "Squeeze", "Identity"):
            return None
        moves.append(node)
        value = node.inputs[0]
    if value is None or node is None or not is_standard(node, "Softmax"):
        return None
    if opset is not None and opset(node) < _SUMS_ALONG_AXIS:
        return None
    axis, rank = node.attributes.get_int("axis", -1), ranks(value)
    if rank is not None:
        axis = axis % rank - rank
    found: int | None = axis if axis < 0 else None
    for move in reversed(moves):
        found = None if found is None else _moved(move, found, ranks)
    return found


def _moved(node: ir.Node, axis: int, ranks: Ranks) -> int | None:
    """Return where a movement brings an axis, both counted from the end."""
    if node.op_type == "Identity":
        return axis
    rank = None if node.inputs[0] is None else ranks(node.inputs[0])
    if rank is None:
        return None
    if node.op_type == "Transpose":
        order = list(node.attributes.get_ints("perm", ())) or list(range(rank))[::-1]
        return order.index(axis + rank) - rank
    axes = _axes(node)
    if axes is None:
        return None
    whole = rank + len(axes) if node.op_type == "Unsqueeze" else rank
    named = {at % whole for at in axes}
    left = [at for at in range(whole) if at not in named]
    if node.op_type == "Unsqueeze":
        return left[axis + rank] - whole
    return left.index(axis + rank) - len(left) if axis + rank in left else None


def _axes(node: ir.Node) -> list[int] | None:
    """Return the axes that an Unsqueeze or Squeeze names."""
    if "axes" in node.attributes:
        return list(node.attributes.get_ints("axes", ()))
    held = constant_tensor(optional(node, 1))
    return None if held is None else [int(at) for at in held.numpy().reshape(-1)]
