"""What operators on integers make of intervals: for each an interval that holds every result (Moore 1966)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import onnx_ir as ir

from normdeploy.verification.derivation.integers.spans import ENDS, Span, Unclear
from normdeploy.verification.derivation.integers.stepwise import Ints
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_LARGEST = 2.0**62
"""Sums and products beyond this are not followed: int64 would not hold them."""


class Operands(Protocol):
    """What operators read: intervals of values, and constants that are looked up in."""

    def of(self, value: ir.Value) -> Span:
        """Return the intervals of a value."""

    def operands(self, node: ir.Node) -> list[Span]:
        """Return the intervals of all that a node reads."""

    def table(self, value: ir.Value | None) -> tuple[Ints, ir.DataType]:
        """Return a constant that is looked up in."""

    def kept(self, low: Ints, high: Ints, least: int, most: int, text: str) -> tuple[Ints, Ints]:
        """Return intervals cut to what is allowed, and note which of them were not within it."""


def _cast(run: Operands, node: ir.Node) -> Span:
    (x,) = run.operands(node)
    dtype = ir.DataType(node.attributes["to"].as_int())
    if dtype not in ENDS or dtype == ir.DataType.BOOL:
        raise Unclear(f"Cast {node.name!r} makes no integers")
    return Span(x.low, x.high, dtype)


def _copy(run: Operands, node: ir.Node) -> Span:
    return run.operands(node)[0]


def _sum(run: Operands, node: ir.Node) -> Span:
    a, b = run.operands(node)
    if kind(node) == "Sub":
        b = Span(-b.high, -b.low, b.dtype)
    _small(node, np.abs([a.low, a.high]).astype(np.float64).max(0) + np.abs([b.low, b.high]).astype(np.float64).max(0))
    return Span(a.low + b.low, a.high + b.high, a.dtype)


def _product(run: Operands, node: ir.Node) -> Span:
    a, b = run.operands(node)
    _small(node, np.abs([a.low, a.high]).astype(np.float64).max(0) * np.abs([b.low, b.high]).astype(np.float64).max(0))
    ends = np.stack([a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high])
    return Span(ends.min(0), ends.max(0), a.dtype)


def _small(node: ir.Node, size: np.ndarray) -> None:
    if size.size and size.max() > _LARGEST:
        raise Unclear(f"{kind(node)} {node.name!r} may leave the range of int64")


def _quotient(run: Operands, node: ir.Node) -> Span:
    a, b = run.operands(node)
    if (b.low != b.high).any() or (b.low <= 0).any():
        raise Unclear(f"Div {node.name!r} divides by what is not one number above 0")
    low, high = (np.sign(end) * (np.abs(end) // b.low) for end in (a.low, a.high))  # towards 0
    return Span(low, high, a.dtype)


def _clip(run: Operands, node: ir.Node) -> Span:
    inputs = inputs_of(node)
    x = run.of(inputs[0]) if inputs[0] is not None else None
    if x is None:
        raise Unclear("Clip reads nothing")
    low, high = x.low, x.high
    bounds = [None if place >= len(inputs) else inputs[place] for place in (1, 2)]
    for bound, cut in zip(bounds, (np.maximum, np.minimum), strict=True):
        if bound is not None:
            end = run.of(bound)
            low, high = cut(low, end.low), cut(high, end.high)
    return Span(low, high, x.dtype)


def _extreme(run: Operands, node: ir.Node) -> Span:
    found = run.operands(node)
    cut = np.maximum if kind(node) == "Max" else np.minimum
    low, high = found[0].low, found[0].high
    for other in found[1:]:
        low, high = cut(low, other.low), cut(high, other.high)
    return Span(low, high, found[0].dtype)


def _compared(run: Operands, node: ir.Node) -> Span:
    a, b = run.operands(node)
    if kind(node).startswith("Less"):  # a < b is b > a
        a, b = b, a
    if kind(node).endswith("OrEqual"):
        low, high = a.low >= b.high, a.high >= b.low
    else:
        low, high = a.low > b.high, a.high > b.low
    return Span(low.astype(np.int64), high.astype(np.int64), ir.DataType.BOOL)


def _chosen(run: Operands, node: ir.Node) -> Span:
    condition, yes, no = run.operands(node)
    low = np.where(condition.low == 1, yes.low, np.where(condition.high == 0, no.low, np.minimum(yes.low, no.low)))
    high = np.where(condition.low == 1, yes.high, np.where(condition.high == 0, no.high, np.maximum(yes.high, no.high)))
    return Span(low, high, yes.dtype)


def _looked_up(run: Operands, node: ir.Node) -> Span:
    table, dtype = run.table(node.inputs[0])
    if node.inputs[1] is None or node.attributes.get_int("axis", 0) != 0:
        raise Unclear(f"Gather {node.name!r} is not along the first axis")
    if not len(table):
        raise Unclear(f"Gather {node.name!r} has an empty table")
    place = run.of(node.inputs[1])
    text = f"Gather {node.name!r} may look outside its table"
    low, high = run.kept(place.low, place.high, 0, len(table) - 1, text)
    one = low == high
    return Span(
        np.where(one, table[low], table.min(initial=0)),
        np.where(one, table[low], table.max(initial=0)),
        dtype,
    )


LAWS: dict[str, Callable[[Operands, ir.Node], Span]] = {
    "Cast": _cast, "Identity": _copy, "Add": _sum, "Sub": _sum, "Mul": _product, "Div": _quotient, "Clip": _clip,
    "Max": _extreme, "Min": _extreme, "Greater": _compared, "GreaterOrEqual": _compared, "Less": _compared,
    "LessOrEqual": _compared, "Where": _chosen, "Gather": _looked_up,
}  # fmt: skip
"""What each operator makes of intervals."""
