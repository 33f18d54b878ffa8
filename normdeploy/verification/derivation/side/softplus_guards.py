"""Where a Softplus is its operand anyway: a choice between the two that no number shows.

torch's export of softplus writes Where(k x > c, x, Softplus(k x) / k), c being 20: beyond that the function differs
from its operand by log(1 + exp(-c)) at most, 2e-9 of 20, a thousandth of a float32's last digit. Other exporters write
the Softplus alone. Where that difference is below :data:`_SEEN` of c, the choice is Softplus(k x) / k for every input.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from normdeploy.graph.edit import take_out, take_place
from normdeploy.graph.exact import constant64
from normdeploy.graph.traits import is_standard

_SEEN = 2.0**-30
"""Share of a number that no float32 shows: a 64th of its unit roundoff."""


def has_choices(model: ir.Model) -> bool:
    """Tell whether a graph chooses between a Softplus and another."""
    return any(_kept(node) is not None for node in model.graph if is_standard(node, "Where"))


def take_out_choices(model: ir.Model) -> int:
    """Take out the choices that no number shows, in place; return how many operators they were."""
    before = len(model.graph)
    for node in list(model.graph):
        kept = _kept(node) if is_standard(node, "Where") else None
        if kept is not None:
            asked = node.inputs[0]
            take_place(kept, node.outputs[0], named=False)
            take_out([node])
            asker = None if asked is None else asked.producer()
            if asker is not None and not any(v.uses() or v.is_graph_output() for v in asker.outputs):
                take_out([asker])
    return before - len(model.graph)


def _kept(node: ir.Node) -> ir.Value | None:
    """Return the Softplus that a Where may be for every input; None where it may be something else."""
    asked, x, made = node.inputs
    asker = None if asked is None else asked.producer()
    if asker is None or x is None or made is None or not is_standard(asker, "Greater", "GreaterOrEqual"):
        return None
    scaled, bound = asker.inputs[0], _number(asker.inputs[1])
    if bound is None or bound <= 0 or math.log1p(math.exp(-bound)) > _SEEN * bound:
        return None
    plus, divided = _factor(made, "Div")
    soft = plus.producer()
    if soft is None or not is_standard(soft, "Softplus") or soft.inputs[0] is not scaled or scaled is None:
        return None
    read, factor = (scaled, 1.0) if scaled is x else _factor(scaled, "Mul")
    return made if read is x and factor == divided and factor > 0 else None


def _factor(value: ir.Value, kind: str) -> tuple[ir.Value, float]:
    """Return what a value is a product, or a quotient, of by one number, and this; itself and 1 where it is none."""
    node = value.producer()
    if node is not None and is_standard(node, kind) and node.inputs[0] is not None:
        number = _number(node.inputs[1])
        if number is not None:
            return node.inputs[0], number
    return value, 1.0


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one element, whatever Casts stand behind it."""
    node = None if value is None else value.producer()
    while node is not None and is_standard(node, "Cast", "CastLike", "Identity"):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    found = constant64(value)
    return float(found.reshape(-1)[0]) if found is not None and found.size == 1 else None
