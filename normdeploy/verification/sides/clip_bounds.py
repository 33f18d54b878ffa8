"""Bounds of a Clip that the other graph does not have: samples say something of one only where they go beyond it.

A Clip from 0 to 10000 in a Relu's place is seen at work below 0, and says nothing of itself above 10000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir
from torch import Tensor

from normdeploy.graph import constant64
from normdeploy.graph.traits import is_standard

BELOW, ABOVE = 0, 1
"""The sides on which a number may lie beyond a bound."""

_SAME = 1e-5
"""Relative difference within which bounds are one: they are stored in float32, or computed there."""

_NAMES = ("min", "max")


def own_bounds(nodes: Iterable[ir.Node], others: Iterable[ir.Node]) -> dict[str, tuple[int, ...]]:
    """Return the sides of bounds that no operator of another graph has, by the name of the Clip's result.

    Args:
        nodes: of one graph. others: the other graph's.
    """
    known = [bound for node in others for bound in _bounds_of(node)]
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        if is_standard(node, "Clip"):
            own = tuple(side for side, bound in clip_bounds(node) if not _is_known(side, bound, known))
            found.update({str(node.outputs[0].name): own} if own else {})
    return found


def clip_bounds(node: ir.Node) -> list[tuple[int, float]]:
    """Return the constant bounds of a Clip with their sides."""
    found = []
    for side, name in enumerate(_NAMES):
        value = node.inputs[1 + side] if 1 + side < len(node.inputs) else None
        number = node.attributes.get_float(name, None) if value is None else constant64(value)
        if number is not None and (isinstance(number, float) or number.size == 1):
            found.append((side, float(number if isinstance(number, float) else number.item())))
    return found


def beyond_bounds(node: ir.Node, read: Tensor) -> set[int]:
    """Return the sides on which a number that a Clip reads lies beyond its bound."""
    return {side for side, beyond in where_beyond(node, read).items() if bool(beyond.any())}


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
        numbers = [constant64(value) for value in node.inputs]
        side = BELOW if node.op_type == "Max" else ABOVE
        yield from ((side, float(number.item())) for number in numbers if number is not None and number.size == 1)


def _is_known(side: int, bound: float, known: Sequence[tuple[int, float]]) -> bool:
    return any(side == its and abs(bound - one) <= _SAME * max(abs(bound), abs(one)) for its, one in known)
