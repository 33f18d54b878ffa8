"""The fixed weight of a linear operator: a float constant, or integers with steps (DequantizeLinear of a constant).

Float weights take any factor. Integers keep their numbers: the steps take |factor|, the integers its sign::

    w = d (q - z):   f w = (|f| d) (q' - z),  q' = q where f > 0 and 2 z - q where f < 0

so f may vary only as the steps do: along their axis; along one axis, chosen by the operator, for a single step; along
any axis but the one cut into blocks. Nothing is rounded but the steps, once.

A weight is refused where the new one cannot be stored as well as the old one: where it overflows its type, or where
what the smallest numbers of the type round off is more than :data:`LOSS` units in the last place of a row's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.graph import ExactTensor, constant64, constant_tensor, parts64, tensor64
from normdeploy.graph.weight import Weight
from normdeploy.rewrite.affine.constant import FORMATS, array_of, optional, required, storable
from normdeploy.rewrite.affine.map import compress
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused
from normdeploy.rewrite.gauge.rows import Floats

LOSS = 2.0
"""Units in the last place of a row's root mean square that storing its weights may cost; plain rounding costs 0.3."""

VANISHES = 2.0**-150
"""Factors below this stand for 0: what a map scales by 0 is scaled by 2**-200 while it moves (:mod:`..maps`)."""

_NOTHING = 2.0**-100
"""Numbers over a scale that stands for infinity are 0 below this; what is meant to be seen there is far larger."""

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
    return np.where(nothing & (np.abs(found) < _NOTHING), 0.0, found) if nothing.any() else found


def rescale(
    edit: Edit, index: int, weight: Weight, factor: Floats, *, rows: Sequence[int], added: Floats | None = None
) -> None:
    """Let input ``index`` of the edited operator be the weight times ``factor``, which broadcasts against it.

    Args:
        edit: the change; gets the cost of a copy.
        index: of the operator's input.
        weight: the old weight.
        factor: of the weight's rank.
        rows: the axes that are summed over together, for what storing may cost.
        added: to a vector of integers first. Where that is no whole number of steps, it becomes one of floats.

    Raises:
        Refused: it cannot be stored.
    """
    steps = None if added is None or not added.any() else _steps(weight, added)
    if added is not None and steps is not None and _broken(steps).any():
        _in_floats(edit, index, weight, factor, added)
        return
    factor = compress(factor)
    extremes = _extremes([factor])
    if extremes[0] < VANISHES:
        factor = np.where(np.abs(factor) < VANISHES, 0.0, factor)
        extremes = _extremes([factor])
    if extremes == (1.0, 1.0) and steps is None and (factor == 1).all():
        return
    if weight.quantized is not None:
        _requantize(edit, index, weight, factor, None if steps is None else np.rint(steps).astype(np.int64))
        return
    tensor = constant_tensor(weight.value)
    assert tensor is not None
    require_storable(edit.node, weight, factor, rows, extremes)
    parts = parts64(tensor)
    shared = len(weight.value.uses()) > 1  # another operator may want the same of it
    key = (weight.value, factor.shape, factor.tobytes()) if shared else None
    new = edit.constant(
        lambda: tensor64(tensor) * factor,
        weight.shape,
        tensor.dtype,
        name=str(weight.value.name),
        succeeds=weight.value,
        parts=None if parts is None else parts.scaled(factor),
        key=key,
    )
    edit.copies(weight.value, [edit.node], key)
    edit.read(index, new)


def require_storable(
    node: ir.Node, weight: Weight, factor: Floats, rows: Sequence[int], extremes: tuple[float, float]
) -> None:
    """Refuse a float weight times a factor that its type cannot hold as well as the weight.

    Args:
        node: the operator.
        weight: its weight.
        factor: of the weight's rank.
        rows: the axes that are summed over together.
        extremes: the smallest size of the factor's numbers that are not zero, and the greatest.

    Raises:
        Refused: it overflows, or what rounds off is more than :data:`LOSS` units of a row.
    """
    unit, smallest, largest = FORMATS[weight.dtype]
    least, greatest = extremes
    if weight.dtype != ir.DataType.FLOAT16 and greatest < 1e30 and least > 1e-30:
        low, high = _extremes(_pieces(weight))
        if high * greatest <= largest and low * least >= smallest / unit:
            return
    new = weight.array() * factor
    if not (np.abs(new) <= largest).all():
        raise Refused(node, f"the weights of {describe(node)} would overflow {weight.dtype.name.lower()}")
    axes = tuple(rows)
    norm = np.sqrt(np.square(new).mean(axis=axes))
    with np.errstate(over="ignore"):
        lost = np.sqrt(np.square(new.astype(weight.dtype.numpy()).astype(np.float64) - new).mean(axis=axes))
    old = weight.array()
    shown = np.sqrt(np.square(old).mean(axis=axes)) > 0
    if (lost[shown] > LOSS * unit * norm[shown]).any() and (factor != 0).any():
        raise Refused(
            node,
            f"the weights of {describe(node)} would lose digits: numbers so small have fewer of them in "
            f"{weight.dtype.name.lower()}",
        )


def _pieces(weight: Weight) -> Iterable[npt.NDArray[np.floating]]:
    tensor = constant_tensor(weight.value)
    assert tensor is not None
    stored = None if isinstance(tensor, ExactTensor) else tensor.numpy()
    if stored is not None and stored.dtype.kind == "f" and stored.flags.c_contiguous:  # their sizes are what they are
        flat = stored.reshape(-1)
        return (flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE))
    parts = parts64(tensor)
    return (tensor64(tensor),) if parts is None else (piece for _, _, piece in parts.pieces(weight.shape))


def _extremes(pieces: Iterable[npt.NDArray[np.floating]]) -> tuple[float, float]:
    """Return the smallest size of the numbers that are not zero, and the greatest."""
    low, high = math.inf, 0.0
    room: npt.NDArray[np.floating] | None = None
    for piece in pieces:
        if room is None or room.shape != piece.shape or room.dtype != piece.dtype:
            room = np.empty_like(piece)
        size = np.abs(piece, out=room)
        high = max(high, float(size.max(initial=0.0)))
        least = float(size.min(initial=math.inf))
        low = min(low, least if least > 0 else float(size.min(initial=math.inf, where=size > 0)))
    return low, high


def require_small(node: ir.Node, dtype: ir.DataType | None, *arrays: Floats) -> None:
    """Refuse small constants (biases, steps, gains) that overflow their type.

    Raises:
        Refused: one of them does.
    """
    if not storable(dtype, *arrays):
        name = "their type" if dtype is None else dtype.name.lower()
        raise Refused(node, f"the weights of {describe(node)} would overflow {name}")


_BROKEN = 1e-12
"""How far from a whole number, relative to its size, a number of steps may be that float64 computed."""


def _steps(weight: Weight, added: Floats) -> Floats:
    """Return a sum in steps of a vector of integers."""
    assert weight.quantized is not None
    return np.asarray(added / array_of(required(weight.quantized, 1)).reshape(-1))


def _broken(steps: Floats) -> npt.NDArray[np.bool_]:
    """Tell which are no whole numbers."""
    return np.asarray(np.abs(steps - np.rint(steps)) > _BROKEN * np.maximum(np.abs(steps), 1))


def _in_floats(edit: Edit, index: int, weight: Weight, factor: Floats, added: Floats) -> None:
    """Store a vector of integers in floats, as they stand for it, with what it takes; say what rounding would cost."""
    stored = constant_tensor(weight.stored)
    assert stored is not None
    total = (weight.array() + added) * factor
    require_small(edit.node, weight.dtype, total)
    name = str(weight.stored.name)
    new = edit.constant(lambda: total, total.shape, weight.dtype, name=name, succeeds=weight.stored)
    edit.absorbs = True
    edit.read(index, new)
    steps = _steps(weight, added)
    lost = np.abs(steps - np.rint(steps))
    at = int(lost.argmax())
    edit.notes.append(
        f"the bias of {describe(edit.node)} is stored in {weight.dtype.name.lower()} now: channel {at} takes "
        f"{steps[at]:.6g} steps of its {stored.dtype.name.lower()}; a runtime that rounds it to such steps moves it by "
        f"at most {lost[at]:.2g} of one"
    )


def _requantize(
    edit: Edit, index: int, weight: Weight, factor: Floats, added: npt.NDArray[np.int64] | None = None
) -> None:
    """Give |factor| to the steps and its sign to the integers, to which whole steps are added first."""
    node = weight.quantized
    assert node is not None
    steps, zero, shape = required(node, 1), optional(node, 2), weight.shape
    old, size = array_of(steps), np.abs(factor)
    if (size == 0).any():
        raise Refused(edit.node, f"{describe(node)} would be left without a step by a scale of 0")
    axis = node.attributes.get_int("axis", 1) % len(shape)
    block = node.attributes.get_int("block_size", 0)
    attributes = dict(node.attributes)
    if block:
        new = old * np.take(size, [0], axis=axis) if size.shape[axis] > 1 else old * size
    else:
        varying = [at for at in range(len(shape)) if size.shape[at] > 1]
        if len(varying) > 1 or (old.size > 1 and varying and varying != [axis]):
            raise Refused(edit.node, f"it varies along another axis than the steps of {describe(node)}")
        if varying:
            axis = varying[0]
            attributes["axis"] = ir.AttrInt64("axis", axis)
            new = old.reshape(-1) * size.reshape(-1)
        else:
            new = old * size.reshape(())
    require_storable_steps(edit.node, node, weight.dtype, new)
    integers: ir.Value = weight.stored
    turned = _turned(edit.node, weight, factor, added)
    if turned is not None:
        integers = _integers(edit, weight.stored, turned)
    inputs: list[ir.Value | None] = [
        integers,
        edit.constant(lambda: new, new.shape, weight.dtype, name=str(steps.name), succeeds=steps),
    ]
    if zero is not None:
        offsets = np.asarray(constant64(zero))
        spread = offsets.size == 1 and offsets.shape != new.shape
        inputs.append(_integers(edit, zero, np.broadcast_to(offsets.reshape(()), new.shape)) if spread else zero)

    def make(result: ir.Value) -> ir.Node:
        return ir.Node(
            node.domain, node.op_type, inputs, list(attributes.values()), outputs=[result], name=node.name,
            metadata_props=dict(node.metadata_props),
        )  # fmt: skip

    made = edit.insert_before(make, weight.value)
    edit.copies(weight.stored if turned is not None else steps, [node])
    edit.read(index, made)


def require_storable_steps(node: ir.Node, quantizer: ir.Node, dtype: ir.DataType, steps: Floats) -> None:
    """Refuse steps that overflow or lose digits."""
    _, smallest, largest = FORMATS[dtype]
    if not ((np.abs(steps) <= largest) & (np.abs(steps) >= smallest)).all():
        raise Refused(node, f"the steps of {describe(quantizer)} would overflow {dtype.name.lower()}")


def _turned(
    node: ir.Node, weight: Weight, factor: Floats, added: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.int64] | None:
    """Return the integers, those of ``added`` with them, with the sign of the factor; None where none changes."""
    if (factor > 0).all() and added is None:
        return None
    quantizer = weight.quantized
    assert quantizer is not None
    tensor = constant_tensor(weight.stored)
    assert tensor is not None
    stored = tensor.numpy().astype(np.int64)
    stored = stored if added is None else stored + added
    zero = constant64(optional(quantizer, 2))
    offset = np.zeros((), np.int64) if zero is None else np.asarray(zero).astype(np.int64)
    axis = quantizer.attributes.get_int("axis", 1) % stored.ndim
    if offset.size == 1:
        offset = offset.reshape(())
    elif offset.ndim == 1:
        offset = offset.reshape([-1 if at == axis else 1 for at in range(stored.ndim)])
    else:
        repeated = np.repeat(offset, quantizer.attributes.get_int("block_size", 1), axis=axis)
        offset = np.take(repeated, range(stored.shape[axis]), axis=axis)
    turned = np.where(factor < 0, 2 * offset - stored, stored)
    bits, signed = tensor.dtype.bitwidth, not tensor.dtype.name.startswith("U")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if turned.min(initial=0) < low or turned.max(initial=0) > high:
        at = np.abs(turned.reshape(-1).astype(np.float64) - (low + high) / 2).argmax()
        raise Refused(
            node,
            f"the integer {int(stored.reshape(-1)[at])} of {describe(quantizer)} has no opposite in "
            f"{tensor.dtype.name.lower()}, and is scaled by a negative number",
        )
    return turned


def _integers(edit: Edit, old: ir.Value, array: npt.NDArray[np.generic]) -> ir.Value:
    tensor = constant_tensor(old)
    assert tensor is not None
    exact = np.asarray(array, dtype=np.float64)  # of at most 32 bits: float64 holds them all
    return edit.constant(lambda: exact, exact.shape, tensor.dtype, name=str(old.name), succeeds=old)
