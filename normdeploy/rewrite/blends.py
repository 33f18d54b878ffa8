"""A blend by constant weights is a sum of two maps: x + a (f - x) = (1 - a) x + a f.

A difference has one scale for both of its operands, so that no gauge takes a from it; of a sum each operand has a map
of its own, which what makes x and what makes f can take. ``torch.lerp`` writes x + a (f - x) where a is below 1/2, and
f - (1 - a) (f - x) above.

Rewritten where

1. y = o + c (p - q), or with a minus in it, o being p or q, c a constant that broadcasts against them;
2. nothing else reads the difference, nor what it is multiplied by;
3. both weights are in [0, 1]: beyond, as guidance has them, large multiples of near values would be subtracted.

As many operators as before. Where some of a's numbers are below 1/2 and others above, Where chooses between the two,
which stay: the verifier would not confirm for every input what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import constant64, is_constant
from normdeploy.graph.edit import edit_each, free_name, only_reader, put_exact, standing_for, take_out, take_place
from normdeploy.graph.traits import is_standard

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
"""Types with room for a stream whose scale is the product of its shares; a stream of float16 stays near 1."""


class SplitBlends(ir.passes.InPlacePass):
    """Write each such blend as the sum of two products."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        return edit_each(model, _split)


@dataclass(frozen=True)
class _Blend:
    """weights[0] * values[0] + weights[1] * values[1], computed by nodes, the last one first."""

    values: tuple[ir.Value, ir.Value]
    weights: tuple[Floats, Floats]
    nodes: tuple[ir.Node, ...]


def _split(graph: ir.Graph, node: ir.Node) -> bool:
    found = next(_blends(node), None)
    if found is None or any((weight < 0).any() for weight in found.weights):
        return False
    if any(map(is_constant, found.values)):  # a map as it stands
        return False
    terms: list[ir.Value] = []
    for value, weight in zip(found.values, found.weights, strict=True):
        constant = put_exact(graph, partial(np.array, weight), weight.shape, _float(value), f"{node.name}.weight")
        made = standing_for(node, "Mul", [value, constant])
        made.outputs[0].name = free_name(graph, f"{node.outputs[0].name}_part")
        graph.insert_before(node, made)
        terms.append(made.outputs[0])
    total = standing_for(node, "Add", terms)
    graph.insert_before(node, total)
    take_place(total.outputs[0], node.outputs[0])
    take_out(found.nodes)
    return True


def _float(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None  # it is one of the blend's
    return value.dtype


def _blends(node: ir.Node) -> Iterator[_Blend]:
    """Yield what a sum or a difference of a value and a multiple of a difference makes of two values."""
    if not is_standard(node, "Add", "Sub"):
        return
    for at, sign in ((0, 1.0), (1, -1.0 if node.op_type == "Sub" else 1.0)):
        scaled, own, own_sign = node.inputs[at], node.inputs[1 - at], -1.0 if node.op_type == "Sub" and at == 0 else 1.0
        times = None if scaled is None or only_reader(scaled) is not node else scaled.producer()
        if times is None or not is_standard(times, "Mul"):
            continue
        for place in (0, 1):
            factor, difference = constant64(times.inputs[place]), times.inputs[1 - place]
            apart = None if difference is None else difference.producer()
            if factor is None or difference is None or apart is None or not is_standard(apart, "Sub"):
                continue
            if only_reader(difference) is not times:
                continue
            p, q = apart.inputs
            if p is None or q is None or p is q or own not in (p, q) or p.dtype not in _WIDE:
                continue
            weights = sign * factor + own_sign * (own is p), -sign * factor + own_sign * (own is q)
            yield _Blend((p, q), weights, (node, times, apart))
