"""Bounds that the other graph does not have: samples say something of one only near it, and beyond it.

A Clip from 0 to 10000 in a Relu's place is seen at work below 0, and says nothing of itself above 10000. Whether what
keeps |x| from 0 is Max(|x|, 1e-12) or |x| + 1e-12 shows near 1e-12 alone, neither where x is 0 nor where it is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from torch import Tensor

from normdeploy.graph.computed_constants import computed_constant
from normdeploy.graph.traits import is_standard

BELOW, ABOVE = 0, 1
"""The sides on which a number may lie beyond a bound."""

NEAR = 2
"""Added to a side: where a number lies near the bound of that side."""

REACH = 64.0
"""By how many times a number near a bound is larger or smaller than it, at most."""

_LAST = float(np.finfo(np.float32).max)
"""A bound of this size leaves every number as it is."""

_SAME = 1e-5
"""Relative difference within which bounds are one: they are stored in float32, or computed there."""

_NAMES = ("min", "max")


def own_bounds(nodes: Iterable[ir.Node], others: Iterable[ir.Node]) -> dict[str, tuple[int, ...]]:
    """Return what has to be seen of bounds that no operator of another graph has, by the name of the result.

    Of a Clip the sides, of a Max or a Min besides that something was near the bound.

    Args:
        nodes: of one graph. others: the other graph's.
    """
    known = [bound for node in others for bound in _bounds_of(node)]
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        bounds = clip_bounds(node) if is_standard(node, "Clip") else extreme_bound(node)
        own = [(side, bound) for side, bound in bounds if abs(bound) < _LAST and not _is_known(side, bound, known)]
        near = [side + NEAR for side, bound in own if bound and not is_standard(node, "Clip")]
        found.update({str(node.outputs[0].name): (*(side for side, _ in own), *near)} if own else {})
    return found


def clip_bounds(node: ir.Node) -> list[tuple[int, float]]:
    """Return the constant bounds of a Clip with their sides."""
    found = []
    for side, name in enumerate(_NAMES):
        value = node.inputs[1 + side] if 1 + side < len(node.inputs) else None
        number = node.attributes.get_float(name, None) if value is None else computed_constant(value)
        if number is not None and (isinstance(number, float) or number.size == 1):
            found.append((side, float(number if isinstance(number, float) else number.item())))
    return found


def extreme_bound(node: ir.Node) -> list[tuple[int, float]]:
    """Return the number that a Max or a Min of two operands, of which the other is computed, never goes beyond."""
    if not is_standard(node, "Max", "Min") or len(node.inputs) != 2:
        return []
    known = [array for value in node.inputs if (array := computed_constant(value)) is not None]
    side = BELOW if node.op_type == "Max" else ABOVE
    return [(side, float(known[0].item()))] if len(known) == 1 and known[0].size == 1 else []


def computed_operand(node: ir.Node) -> ir.Value | None:
    """Return what an operator cuts: a Clip's first operand; of a Max or a Min by one number the other."""
    return node.inputs[1] if computed_constant(node.inputs[0]) is not None else node.inputs[0]


def reached_of_bounds(node: ir.Node, read: Tensor) -> set[int]:
    """Return the sides on which a number that an operator reads lies beyond its bound, and of those near which it lies.

    Args:
        node: a Clip, or a Max or a Min by one number. read: the operand that is computed.
    """
    if is_standard(node, "Clip"):
        return {side for side, beyond in where_beyond(node, read).items() if bool(beyond.any())}
    found = set[int]()
    for side, bound in extreme_bound(node):
        size = read.abs()
        near = (size >= abs(bound) / REACH) & (size <= abs(bound) * REACH)
        found |= {side} if bool((read < bound if side == BELOW else read > bound).any()) else set()
        found |= {side + NEAR} if bool(near.any()) else set()
    return found


def where_beyond(node: ir.Node, read: Tensor) -> dict[int, Tensor]:
    """Return where numbers that a Clip reads lie beyond its bounds, by the bound's side."""
    beyond = {BELOW: read.lt, ABOVE: read.gt}
    return {side: beyond[side](bound) for side, bound in clip_bounds(node)}


def _bounds_of(node: ir.Node) -> Iterator[tuple[int, float]]:
    """Yield what an operator keeps its results within, where that is one number."""
    if is_standard(node, "Relu"):
        yield BELOW, 0.0
    elif is_standard(node, "Clip"):
        yield from clip_bounds(node)
    elif is_standard(node, "Max", "Min"):
        numbers = [computed_constant(value) for value in node.inputs]
        side = BELOW if node.op_type == "Max" else ABOVE
        yield from ((side, float(number.item())) for number in numbers if number is not None and number.size == 1)


def _is_known(side: int, bound: float, known: Sequence[tuple[int, float]]) -> bool:
    return any(side == its and abs(bound - one) <= _SAME * max(abs(bound), abs(one)) for its, one in known)
