"""Operators that look at one position at a time.

- Sums: Add, Sub, Sum, Mean. s of all operands and of the result are one; t_y = sum of the (signed) t of the operands.
- Products: Mul, Div. s_y = product (quotient) of the factors' scales, no shift; by a constant c, t_y = c t.
- Homogeneous functions, f(s x) = s f(x) for s > 0: Relu, LeakyRelu, PRelu, Abs.
- Choices between operands: Max, Min (s > 0), Where: operands and result carry one gauge. Zeros that Where puts at known
  places have a shift of their own at each: an adaptive pool fills windows up with them, and counts them out.
- Clip at 0, from below alone, is a Relu. Any other: one number everywhere, and the bounds follow: (bound - t) / s; they
  change places where s < 0, which an upper bound below the lower one, that then holds everywhere, does not allow.
- Neg: t changes its sign. Trilu: t = 0.
- Cast between floats: as it is; but nothing passes one that rounds for what goes back to more digits.

A constant among the operands is computed anew, c' = (c - t) / s, whatever its gauge: it takes up any shift.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, compress, constant64, constant_tensor, is_constant
from normdeploy.graph.operator_inputs import array_of, optional, required
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.constant import holds_less
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Cells, Gauge, common
from normdeploy.rewrite.gauge.operator_edit import Edit
from normdeploy.rewrite.gauge.rules.weights import VANISHES, divided, put, require_small
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims
from normdeploy.rewrite.rewrite_context import GUARD

_UNRANKED = "has an operand of unknown rank, or more elements than are followed"


def _operands(node: ir.Node, ties: Ties, first: int = 0) -> list[Gauge]:
    """Return the gauges of the operands from ``first`` on at the result's rank."""
    rank, places = len(known_dims(node.outputs[0], _UNRANKED)), range(first, len(node.inputs))
    computed = [
        ties.operand(node, index, clause=_UNRANKED).wider(rank)
        for index in places
        if not is_constant(node.inputs[index])
    ]
    if not computed or math.prod(cells := common(*computed)) > MOST_CELLS:
        raise Unfollowed(_UNRANKED)
    return [ties.operand(node, index, cells, grows=True, clause=_UNRANKED).wider(rank) for index in places]


def add(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Add, Sub, Sum, Mean."""
    if len(node.inputs) == 1:
        return same(node, ties)
    if GUARD in node.metadata_props:
        raise Unfollowed("adds a number that would be lost beside a shift")
    operands = _operands(node, ties)
    cells = common(*operands)
    why = Tie(node)
    computed = [gauge for index, gauge in enumerate(operands) if not is_constant(node.inputs[index])]
    result = ties.fresh_shift(computed[0].spread(cells))  # what is added has one scale: the result's needs no equation
    share = 1.0 / len(operands) if node.op_type == "Mean" else 1.0
    terms = []
    for index, gauge in enumerate(operands):
        whole = gauge.spread(cells)
        port = ties.ports.get((node, index))
        if len(computed) == 1 and port is not None and whole.scale_of.size == port.scale_of.size:
            ties.ports[node, index] = replace(port, scale_of=result.scale_of.reshape(port.cells))
        elif gauge is not computed[0]:
            ties.same_scale(result, whole, why)
        terms.append((whole, -share if node.op_type == "Sub" and index == 1 else share))
    ties.total(result, terms, why)
    return result


def multiply(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Mul, Div."""
    operands = _operands(node, ties)
    why = Tie(node, "multiplies two values, which leaves no place for a shift")
    if node.op_type == "Div":
        why = Tie(node, "divides, which leaves no place for a shift")
    cells = common(*operands)
    result, data, by = ties.fresh_scale(cells), *_multiplier(node, cells)
    for index, gauge in enumerate(operands):
        if index != data:
            ties.no_shift(gauge, why if data is None else Tie(node))
    powers = (1.0, -1.0 if node.op_type == "Div" else 1.0)
    factors = [(gauge.spread(cells), power) for gauge, power in zip(operands, powers, strict=True)]
    ties.product(result, factors, Tie(node))
    if data is None:
        return result
    passed = operands[data].spread(cells)
    return replace(passed, scale_of=result.scale_of, factor=passed.factor * by)


def _multiplier(node: ir.Node, cells: Cells) -> tuple[int | None, Floats]:
    """Return which operand is multiplied by constant numbers, and by which, where these vary as the gauge does.

    More cells for the shift alone (a rotary table's, one for each place) make the rewrite slow, and nothing takes it.
    """
    data = 1 if is_constant(node.inputs[0]) else 0
    found = None if data == 1 and node.op_type == "Div" else constant64(node.inputs[1 - data])
    if found is None or np.broadcast_shapes(cells, found.shape) != cells:
        return None, np.ones(())
    with np.errstate(divide="ignore"):
        numbers = 1 / found if node.op_type == "Div" else found
    return (data, numbers) if np.isfinite(numbers).all() else (None, numbers)


def homogeneous(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Relu, LeakyRelu, PRelu, Abs."""
    gauge = ties.operand(node, 0)
    slope = optional(node, 1)
    if slope is not None and slope in ties.of and not is_constant(slope):
        ties.pinned(ties.of[slope], Tie(node, "reads it as its slope"))
    gauge = ties.no_shift(gauge, Tie(node, "cuts at 0, which a shift would move"))
    ties.positive(gauge, Tie(node, "needs a scale above 0: with another its other side would be cut"))
    return gauge


def masked(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Trilu, which puts zeros in the place of some elements."""
    return ties.no_shift(ties.operand(node, 0), Tie(node, "writes zeros, which a shift would change"))


def same(node: ir.Node, ties: Ties) -> Gauge:
    """Tie an operator that passes its first operand on."""
    return ties.operand(node, 0)


def negate(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Neg."""
    return ties.operand(node, 0).times(-1.0)


def dropout(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Dropout in evaluation."""
    flag = optional(node, 2)
    training = None if flag is None else constant64(flag)
    if flag is not None and (training is None or bool(training)):
        raise Unfollowed("drops at random (training mode)")
    return same(node, ties)


def cast(node: ir.Node, ties: Ties) -> Gauge:
    """Tie a Cast between floats."""
    value, result = node.inputs[0], node.outputs[0]
    if value is None or value.dtype not in FLOATS or result.dtype not in FLOATS:
        raise Unfollowed("converts to or from something that is no float")
    users = [usage.node for usage in result.uses()]
    if users and all(map(_widens, users)) and holds_less(result.dtype, value.dtype):
        raise Unfollowed("rounds, and the next operator goes back to more digits: what it rounds is to stay what it is")
    return same(node, ties)


def _widens(node: ir.Node) -> bool:
    return is_standard(node, "Cast") and holds_less(required(node, 0).dtype, node.outputs[0].dtype)


def choose(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Max, Min."""
    if len(node.inputs) == 1:
        return same(node, ties)
    result = one_of(node, ties, _operands(node, ties))
    ties.positive(result, Tie(node, "compares, and needs a scale above 0: with another the other operand would win"))
    return result


def one_of(node: ir.Node, ties: Ties, operands: list[Gauge]) -> Gauge:
    """Return one gauge for a result and all operands."""
    cells = common(*operands)
    result, *others = (gauge.spread(cells) for gauge in operands)
    for gauge in others:
        ties.same(result, gauge, Tie(node))
    return result


def where(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Where. Zeros at places that are known are zeros under any scale, and have a shift of their own each."""
    operands = _operands(node, ties, first=1)
    condition, cells = constant_tensor(node.inputs[0]), common(*operands)
    zeros = [index for index in (1, 2) if (found := constant64(node.inputs[index])) is not None and not found.any()]
    if condition is None or len(zeros) != 1:
        return one_of(node, ties, operands)
    chosen = condition.numpy()
    cells = np.broadcast_shapes(cells, chosen.shape)
    if chosen.size == 1 or math.prod(cells) > MOST_CELLS:
        return one_of(node, ties, operands)
    data = operands[2 - zeros[0]].spread(cells)
    written = ties.ports[node, zeros[0]] = ties.fresh_shift(data)
    ways = (written, data) if zeros[0] == 1 else (data, written)
    parts = zip(*((gauge.scale_of, gauge.shift_of, gauge.factor) for gauge in ways), strict=True)
    return Gauge(*(np.where(chosen, one, other) for one, other in parts))


def is_relu(node: ir.Node) -> bool:
    """Tell whether an operator is a Clip at 0, from below alone."""
    low, high = optional(node, 1), optional(node, 2)
    if low is None or high is not None or not is_standard(node, "Clip"):
        return False
    return is_constant(low) and not array_of(low).any()


def clip(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Clip; one that is a Relu first as such, then as any other, which a number of any sign and a shift pass."""
    gauge = ties.operand(node, 0)
    if is_relu(node) and node not in ties.pads:
        return homogeneous(node, ties)
    bounds = [bound for index in (1, 2) if (bound := optional(node, index)) is not None]
    if not all(is_constant(bound) for bound in bounds):
        raise Unfollowed("has bounds that are computed at run time")
    flat = ties.along(gauge, range(gauge.rank), Tie(node, "cuts all channels at the same values"))
    if len(bounds) == 2 and array_of(bounds[0]) > array_of(bounds[1]):
        ties.positive(flat, Tie(node, "gives its upper bound, which is below the lower one"))
    return flat


def write_clip(edit: Edit) -> None:
    """Let the bounds follow."""
    node, found = edit.node, edit.result()
    scale, shift = (array.reshape(-1)[0] for array in found)
    if (scale == 1 and shift == 0) or (is_relu(node) and (found[0] > 0).all() and not found[1].any()):
        return
    bounds: list[tuple[ir.Value, float] | None] = []
    for index in (1, 2):
        bound = optional(node, index)
        bounds.append(None if bound is None else (bound, float((array_of(bound) - shift) / scale)))
    placed = bounds if scale > 0 else bounds[::-1]
    for index, entry in enumerate(placed, start=1):
        old = optional(node, index)
        if entry is None:
            if old is not None:
                edit.read(index, None)
            continue
        value, number = entry
        if not np.isinf(array_of(value)):  # no bound at all
            require_small(node, value.dtype, np.array(number))
        assert value.dtype is not None  # a constant has one
        compute = partial(np.array, number)
        new = edit.constant(compute, (), value.dtype, name=str(value.name), succeeds=value)
        edit.read(index, new)


def write_constants(edit: Edit) -> None:
    """Compute each constant operand anew: c' = (c - t) / s."""
    node, ties = edit.node, edit.at.ties
    for index in range(len(node.inputs)):
        gauge = ties.ports.get((node, index))
        value = node.inputs[index]
        if gauge is None or value is None or edit.at.is_identity(gauge):
            continue
        scale, shift = compress(edit.at.scale(gauge)), compress(edit.at.shift(gauge))  # as large as they have to be
        old = array_of(value)
        new = divided(old - shift, scale)
        endless = bool((np.isinf(new) <= np.isinf(old)).all()) and not (np.abs(scale) < VANISHES).any()
        if new.size > old.size:  # zeros of several scales are zeros
            new = compress(new)
        while new.ndim > max(old.ndim, 0) and new.shape[0] == 1:
            new = new[0]
        if new.shape == old.shape and np.array_equal(new, old):  # zeros, and infinities
            continue
        assert value.dtype is not None
        put(edit, index, new, value.dtype, name="", endless=endless)
