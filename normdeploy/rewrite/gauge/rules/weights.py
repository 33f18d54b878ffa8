"""The fixed weight of a linear operator takes factors: a float constant any, integers those of :mod:`.integers`.

A weight is refused where the new one cannot be stored as well as the old one: where it overflows its type, or where
what the smallest numbers of the type round off is more than a few units in the last place of a row's size, and could
be seen beside the bias. (Weight decay leaves scales of 1e-41 where a channel is not needed, and their shifts.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import ExactTensor, compress, constant_tensor, parts64, tensor64
from normdeploy.graph.constant_parts import SQUARE_LOST
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.weight import Weight
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.constant import FORMATS, loses_digits, storable
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused, UndoesZero
from normdeploy.rewrite.gauge.rules.integers import requantize

VANISHES = 2.0**-150
"""Factors below this stand for 0: what a map scales by 0 is scaled by 2**-200 while it moves (:mod:`..maps`)."""

NOTHING = 2.0**-100
"""Numbers over a scale that stands for infinity are 0 below this; what is meant to be seen there is far larger."""

_FAR = 2.0**64
"""No value of a network is larger, or than its type holds: what a weight loses is asked for beside the bias with it."""

_PIECE = 1 << 16
"""Numbers that are looked at together."""


def divided(numbers: Floats, scale: Floats) -> Floats:
    """Return numbers over a scale; 0 where that scale stands for infinity and leaves nothing of them.

    Left as the tiny numbers they come out as, they would be written as 0 and differ from it in float64.

    Args:
        numbers: of any size. scale: broadcasts against them.
    """
    found = np.asarray(numbers / scale)
    nothing = np.abs(scale) * VANISHES > 1
    return np.where(nothing & (np.abs(found) < NOTHING), 0.0, found) if nothing.any() else found


def rescale(
    edit: Edit,
    index: int,
    weight: Weight,
    factor: Floats,
    divisor: Floats | None = None,
    *,
    rows: Sequence[int],
    bias: Floats | None = None,
) -> None:
    """Let input ``index`` of the edited operator be the weight times ``factor`` over ``divisor``.

    Args:
        edit: the change; gets the cost of a copy.
        index: of the operator's input.
        weight: the old weight.
        factor, divisor: of the weight's rank, broadcast against it.
        rows: the axes that are summed over together, for what storing may cost.
        bias: what is added to each row from now on, broadcast against the weight; None where that is not known.

    Raises:
        Refused: it cannot be stored.
    """
    steps = _steps(compress(factor), None if divisor is None else compress(divisor))
    if not steps:
        return
    if weight.quantized is not None:
        requantize(edit, index, weight, _product(steps))
        return
    tensor = constant_tensor(weight.value)
    assert tensor is not None
    require_storable(edit.node, weight, steps, rows, bias)
    parts = parts64(tensor)
    for step in steps:
        parts = None if parts is None else parts.scaled(step)
    shared = len(weight.value.uses()) > 1  # another operator may want the same of it
    key = (weight.value, *((step.shape, step.tobytes()) for step in steps)) if shared else None
    new = edit.constant(
        lambda: tensor64(tensor) * _product(steps),
        weight.shape,
        tensor.dtype,
        name=str(weight.value.name),
        succeeds=weight.value,
        parts=parts,
        key=key,
    )
    edit.copies(weight.value, [edit.node], key)
    edit.read(index, new)


def _steps(factor: Floats, divisor: Floats | None) -> list[Floats]:
    """Return what a weight is multiplied with, one array after the other; nothing that changes nothing.

    Scales of inputs and of outputs stay two where their products would be more: what reads the weight takes them off
    (:mod:`normdeploy.graph.operators.pieces`). Where one of them stands for 0 or for infinity, the quotient tells which
    numbers are 0.
    """
    if divisor is not None:
        apart = math.prod(np.broadcast_shapes(factor.shape, divisor.shape)) > max(factor.size, divisor.size)
        if apart and all(VANISHES < least <= most < 1 / VANISHES for least, most in map(_extremes, (factor, divisor))):
            return [factor, 1.0 / divisor]
        factor = factor / divisor
    if _extremes(factor)[0] < VANISHES:
        factor = np.where(np.abs(factor) < VANISHES, 0.0, factor)
    return [] if (factor == 1).all() else [factor]


def _product(steps: Sequence[Floats]) -> Floats:
    return steps[0] if len(steps) == 1 else steps[0] * steps[1]


def put(
    edit: Edit,
    index: int,
    array: Floats,
    dtype: ir.DataType,
    *,
    name: str,
    holder: ir.Node | None = None,
    key: Hashable = None,
    endless: bool = False,
) -> None:
    """Let a small constant input (a bias, a gain, an addend) be another one.

    Args:
        edit: the change; gets the cost of a copy.
        index: of the input, of ``holder`` in place of the edited operator where it is given.
        array: unrounded. dtype: what it is rounded to.
        name: where there was none so far.
        key: see :meth:`.Edit.constant`.
        endless: what was infinite may stay so.

    Raises:
        Refused: it overflows.
    """
    node = holder or edit.node
    old = optional(node, index)
    require_small(edit.node, dtype, np.where(np.isinf(array), 0.0, array) if endless else array)
    name = name if old is None else str(old.name)
    new = edit.constant(lambda: array, array.shape, dtype, name=name, succeeds=old, key=key)
    edit.copies(old, [node], key)
    if old is not None:
        edit.grows(old, array.size)
    edit.read(index, new, node)


def require_storable(
    node: ir.Node, weight: Weight, steps: Sequence[Floats], rows: Sequence[int], bias: Floats | None = None
) -> None:
    """Refuse a float weight times factors that its type cannot hold as well as the weight.

    Args:
        node: the operator.
        weight: its weight.
        steps: the factors, of the weight's rank.
        rows: the axes that are summed over together.
        bias: what is added to each row, broadcast against the weight; None where that is not known.

    Raises:
        Refused: it overflows, or its type has fewer digits for what it would be.
    """
    _, smallest, largest = FORMATS[weight.dtype]
    least, greatest = (math.prod(ends) for ends in zip(*map(_extremes, steps), strict=True))
    if weight.dtype != ir.DataType.FLOAT16 and greatest < 1e30 and least > 1e-30 and all(map(np.all, steps)):
        size, shown = _bounds(weight, rows)
        # a row of n numbers, one of them w, has a root mean square of w / sqrt(n) and more: n rounded steps are less
        if size * greatest <= largest and shown * least >= smallest * math.prod(weight.shape):
            return
    factor = _product(steps)
    require_no_zero_undone(node, factor)
    new = weight.array() * factor
    if not (np.abs(new) <= largest).all():
        raise _unstorable(node, weight.dtype, new)
    if (factor != 0).any():
        shown = np.sqrt(np.square(weight.array()).mean(axis=tuple(rows))) > 0
        lost = loses_digits(weight.dtype, new, tuple(rows)) & shown
        require_digits(node, weight.dtype, lost if bias is None else lost & ~_hidden(weight.dtype, new, rows, bias))


def _hidden(dtype: ir.DataType, new: Floats, rows: Sequence[int], bias: Floats) -> npt.NDArray[np.bool_]:
    """Tell of which rows what storing loses is less than what rounding the sum with the bias does, whatever is read."""
    unit, _, largest = FORMATS[dtype]
    lost = np.abs(new.astype(dtype.numpy()).astype(np.float64) - new).sum(axis=tuple(rows)) * min(_FAR, largest)
    return np.asarray(lost <= unit * np.broadcast_to(np.abs(bias), new.shape).min(axis=tuple(rows)))


def require_no_zero_undone(node: ir.Node, *numbers: Floats) -> None:
    """Refuse numbers that stand for infinity: what a map scales by 0 would have to become again what it was.

    Two large scales make as large a number; a graph without a scale of 0 has nothing else. Float64 holds both.

    Raises:
        UndoesZero: some do.
    """
    if not any((np.abs(array) * VANISHES > 1).any() for array in numbers):
        return
    beside = () if node.graph is None else node.graph
    if any((affine_map(other).scale == 0).any() for other in beside if is_affine(other)):
        raise UndoesZero(node, f"{describe(node)} would have to undo a scale of 0, by which nothing can be divided")


def require_digits(node: ir.Node, dtype: ir.DataType, lost: npt.NDArray[np.bool_]) -> None:
    """Refuse weights that their type has fewer digits for.

    Raises:
        Refused: of some row it is so.
    """
    if lost.any():
        raise Refused(
            node,
            f"the weights of {describe(node)} would lose digits: numbers so small have fewer of them in "
            f"{dtype.name.lower()}",
        )


def _bounds(weight: Weight, rows: Sequence[int]) -> tuple[float, float]:
    """Return a bound on the size of a float weight's numbers, and one below that of some number of each row.

    By a sum of squares in the type of the weight: one look at each number, which is all that most weights need.
    """
    at = tuple(0 if axis in rows else slice(None) for axis in range(len(weight.shape)))
    square, shown = SQUARE_LOST, math.inf
    with np.errstate(all="ignore"):  # what overflows here is looked at closely
        for piece in _pieces(weight):
            flat = piece.ravel(order="K")
            square += 2 * float(np.dot(flat, flat))
            shown = min(shown, float(np.abs(piece[at]).min(initial=math.inf)))
    return math.sqrt(square), shown


def _pieces(weight: Weight) -> Iterable[npt.NDArray[np.floating]]:
    tensor = constant_tensor(weight.value)
    assert tensor is not None
    stored = None if isinstance(tensor, ExactTensor) else tensor.numpy()
    if stored is not None and stored.dtype.kind == "f" and stored.ndim:
        step = max(_PIECE * len(stored) // max(stored.size, 1), 1)
        return (stored[start : start + step] for start in range(0, len(stored), step))
    parts = parts64(tensor)
    if parts is None:
        return (tensor64(tensor),)
    if parts.stored is None or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return (piece for _, _, piece in parts.pieces(weight.shape))
    read = parts.stored()
    return (read(start, stop) for start, stop in parts.cuts(weight.shape))


def _extremes(numbers: Floats) -> tuple[float, float]:
    """Return the smallest size of the numbers that are not zero, and the greatest."""
    size = np.abs(numbers)
    return float(size.min(initial=math.inf, where=size > 0)), float(size.max(initial=0.0))


def require_small(node: ir.Node, dtype: ir.DataType | None, *arrays: Floats) -> None:
    """Refuse small constants (biases, steps, gains) that overflow their type.

    Raises:
        Refused: one of them does.
    """
    require_no_zero_undone(node, *arrays)
    if not storable(dtype, *arrays):
        raise _unstorable(node, dtype, *arrays)


def _unstorable(node: ir.Node, dtype: ir.DataType | None, *arrays: Floats) -> Refused:
    """Return why numbers cannot be stored; what is infinite in float64 was so before, but of a graph in float64."""
    whole = [~np.isnan(array) if dtype == ir.DataType.DOUBLE else np.isfinite(array) for array in arrays]
    if not all(array.all() for array in whole):
        return Refused(node, f"the weights of {describe(node)} hold NaN or infinity: train it again or restore them")
    name = "their type" if dtype is None else dtype.name.lower()
    return Refused(node, f"the weights of {describe(node)} would overflow {name}")
