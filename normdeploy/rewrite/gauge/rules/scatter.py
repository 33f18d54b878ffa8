"""Operators that write updates into places of a value: ScatterElements, ScatterND; and what they begin with.

Along the axes on which places are named, all cells of the value and of the updates are one; along the others the cells
of both correspond to each other.

- Replacing: value, updates and result carry one gauge. So they do for a maximum or minimum, which needs s > 0.
- Adding: one scale, and t_updates = 0, since elements get no update, one, or several.
- Multiplying: s = 1, t = 0 of the updates, t = 0 of the value.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from normdeploy.graph import FLOATS
from normdeploy.graph.operator_inputs import required
from normdeploy.rewrite.affine.axes import Dims
from normdeploy.rewrite.gauge.gauge import Gauge, common
from normdeploy.rewrite.gauge.rules.elementwise import one_of
from normdeploy.rewrite.gauge.rules.moves import MANY
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims

_UNRANKED = "has a value, indices or updates of unknown rank"


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie ScatterElements, ScatterND."""
    data, updates = _operands(node, ties)
    cells = common(data, updates)
    reduction = node.attributes.get_string("reduction", "none")
    if reduction == "mul":
        ties.pinned(updates, Tie(node, "multiplies by it"))
        result = ties.no_shift(data, Tie(node, "multiplies some elements, and a shift with them"))
    elif reduction == "add":
        ties.same_scale(data.spread(cells), updates.spread(cells), Tie(node))
        ties.no_shift(updates, Tie(node, "adds a shift as often as an element has updates"))
        result = data.spread(cells)
    else:
        result = one_of(node, ties, [data, updates])
        if reduction != "none":
            ties.positive(result, Tie(node, "compares, and needs a scale above 0: with another the other would win"))
    return result


def _operands(node: ir.Node, ties: Ties) -> tuple[Gauge, Gauge]:
    """Return the gauges of the value and of the updates, both along the value's axes."""
    whole, places, new = (known_dims(required(node, index), _UNRANKED) for index in range(3))
    if node.op_type == "ScatterND":
        depth = places[-1]
        if not isinstance(depth, int):
            raise Unfollowed(_UNRANKED)
        named, leading = list(range(depth)), list(range(len(places) - 1))
    else:
        axis = node.attributes.get_int("axis", 0) % len(whole)
        named = leading = [at for at in range(len(whole)) if at == axis or whole[at] != new[at]]
    data = ties.operand(node, 0, [1 if axis in named else 2 for axis in range(len(whole))], clause=_UNRANKED)
    updates = ties.operand(node, 2, [1 if axis in leading else 2 for axis in range(len(new))], clause=_UNRANKED)
    why = Tie(node, "writes along the axis where it varies, at places that are known at run time only")
    data, updates = ties.along(data, named, why), ties.along(updates, leading, why)
    if node.op_type == "ScatterND":
        laid_out = (*(1 for _ in named), *updates.cells[len(leading) :])
        updates = updates.each(lambda array: array.reshape(laid_out))
    return data, updates


def filled(node: ir.Node, ties: Ties) -> Gauge:
    """Tie ConstantOfShape: zeros are of any scale, infinities of any scale above 0 and any shift."""
    value, dims = node.attributes.get_tensor("value", None), known_dims(node.outputs[0])
    number = 0.0 if value is None else float(value.numpy().reshape(-1)[0])
    if node.outputs[0].dtype not in FLOATS or not (number == 0 or math.isinf(number)):
        raise Unfollowed
    gauge = ties.fresh(cells_of(dims) or (1,) * len(dims), slack=True)
    if number:
        ties.positive(gauge, Tie(node, "is infinite, and needs a scale above 0: another changes the sign"))
    return gauge if number else gauge.unshifted


def cells_of(dims: Dims) -> tuple[int, ...] | None:
    """Return a cell for each element along the axes of known size; None where these are too many."""
    cells = tuple(dim if isinstance(dim, int) else 1 for dim in dims)
    return cells if math.prod(cells) <= MANY else None
