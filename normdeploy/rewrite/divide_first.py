"""A gain that is multiplied in before the deviation divides: (g u) / s becomes (u / s) g, in which the norm stands.

``style * (x - mean) / deviation`` is this in Python. Where g is computed at run time, no part of it is a normalization:
u / s is. As many operators over as much data, equal in exact arithmetic.

Rewritten where

1. Div reads a product of two computed values that nothing else reads;
2. s is computed by a reduction of what one factor, u, is computed from, and not from the other one, g;
3. s broadcasts into u, whose shape u / s has.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import is_constant
from normdeploy.graph.edit import edit_each, only_reader, standing_for, take_out, take_place
from normdeploy.graph.traits import Trait, has, is_standard

_DEPTH = 16
"""Operators between a deviation and what it is of: Sqrt, epsilon, views, the correction, the mean, a square, Sub."""


class DivideFirst(ir.passes.InPlacePass):
    """Exchange the Mul and the Div of each such quotient."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        return edit_each(model, _exchange)


def _exchange(graph: ir.Graph, quotient: ir.Node) -> bool:
    if not is_standard(quotient, "Div"):
        return False
    product, deviation = quotient.inputs
    if product is None or deviation is None or is_constant(deviation) or only_reader(product) is not quotient:
        return False
    times = product.producer()
    if times is None or not is_standard(times, "Mul") or any(is_constant(value) for value in times.inputs):
        return False
    first, second = times.inputs
    if first is None or second is None or first is second:
        return False
    of = _reduced(deviation)
    known = [_is_of(value, of) for value in (first, second)]
    if known[0] == known[1]:
        return False
    gain, deviates = (second, first) if known[0] else (first, second)
    if not _spreads(deviation, deviates):
        return False
    result = quotient.outputs[0]
    inner = standing_for(quotient, "Div", [deviates, deviation], like=deviates)
    outer = standing_for(times, "Mul", [inner.outputs[0], gain], like=result)
    graph.insert_after(quotient, [inner, outer])
    take_place(outer.outputs[0], result)
    take_out([quotient, times])
    return True


def _reduced(value: ir.Value) -> set[ir.Value]:
    """Return what a reduction among the last operators of a value reads, and what that is computed from."""
    seen: set[tuple[ir.Value, bool]] = set()
    layer = {(value, False)}
    for _ in range(_DEPTH):
        seen |= layer
        following: set[tuple[ir.Value, bool]] = set()
        for current, behind in layer:
            node = current.producer()
            if node is not None and not is_constant(current):
                inside = behind or has(node, Trait.REDUCES)
                following |= {(read, inside) for read in node.inputs if read is not None}
        layer = following - seen
    return {current for current, behind in seen | layer if behind and not is_constant(current)}


def _is_of(value: ir.Value, of: set[ir.Value]) -> bool:
    """Tell whether a value, or what the operator behind it reads, is among those."""
    node = value.producer()
    return value in of or (node is not None and any(read in of for read in node.inputs if read is not None))


def _spreads(small: ir.Value, large: ir.Value) -> bool:
    """Tell whether a value broadcasts into another one, axis by axis."""
    if small.shape is None or large.shape is None or small.shape.rank() != large.shape.rank():
        return False
    return all(size in (1, whole) for size, whole in zip(small.shape, large.shape, strict=True))
