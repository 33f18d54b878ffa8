"""Operators that take places together: pools, reductions, Softmax, Resize, GridSample."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.gauges import along
from normdeploy.verification.derivation.laws.pointwise import Carried, Reading, others_equal
from normdeploy.verification.derivation.laws.same_operator import equal
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare
from normdeploy.verification.derivation.side.beyond import alike_beyond
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.reduced_axes import reduced
from normdeploy.verification.derivation.side.zero_guards import lost_bound

_PLACES = frozenset({"ArgMax", "ArgMin"})
"""Operators that tell where the largest or smallest stands."""


def pool(at: Reading) -> Carried:
    """Averages and maxima over windows: channel by channel."""
    claim = at.first
    rank = claim.scale.ndim
    if (
        any(n != 1 for array in (claim.scale, claim.shift) for axis, n in enumerate(array.shape) if axis != 1)
        or rank < 3
    ):
        return f"{kind(at.node)} takes together what is scaled differently"
    if kind(at.node) not in ("AveragePool", "GlobalAveragePool") and (claim.scale <= 0).any():
        return f"{kind(at.node)} of what is scaled by a negative number"
    if kind(at.node) in ("LpPool", "GlobalLpPool") and claim.shift.any():
        return f"{kind(at.node)} of what is shifted"
    if len([output for output in at.node.outputs if output.name]) > 1 and (claim.scale <= 0).any():
        return f"{kind(at.node)} returns places"
    attributes = at.node.attributes
    ceil, counted = (int(attributes.get_int(name, 0)) for name in ("ceil_mode", "count_include_pad"))
    auto = attributes.get_string("auto_pad", "NOTSET")
    padded = any(attributes.get_ints("pads", ())) or ceil or auto not in ("NOTSET", "VALID")
    if kind(at.node) == "AveragePool" and counted and padded and claim.shift.any():
        return "AveragePool counts zeros in where the source counts a shift"
    return claim.scale, claim.shift


def running_sum(at: Reading) -> Carried:
    """CumSum of what is scaled alike along its axis."""
    claim, text = at.first, others_equal(at)
    axis = at.relation.source.constant(at.origin.inputs[1])
    if text or axis is None:
        return text or "CumSum: its axis is not known"
    if claim.shift.any() or claim.scale.shape[axis_of(int(axis.reshape(-1)[0]), claim.scale.ndim)] != 1:
        return "CumSum of what is shifted, or scaled differently along its axis"
    return claim.scale, claim.shift


def largest(at: Reading) -> Carried:
    """TopK, ArgMax, ArgMin and Hardmax of what keeps its order."""
    claim, text = at.first, others_equal(at)
    told = kind(at.node) != "TopK"
    axis = axis_of(at.node.attributes.get_int("axis", 0 if kind(at.node) in _PLACES else -1), claim.scale.ndim)
    if text:
        return text
    if (claim.scale <= 0).any() or claim.scale.shape[axis] != 1 or claim.shift.shape[axis] != 1:
        return f"{kind(at.node)} compares what is scaled or shifted differently, or by a negative number"
    if kind(at.node) == "Hardmax" and at.relation.file.opset(at.node) < 13:
        return "Hardmax of operator sets before 13 compares along all axes behind"
    return (np.ones(()), np.zeros(())) if told else (claim.scale, claim.shift)


def reduction(at: Reading) -> Carried:
    """Averages, sums and maxima along axes on which the gauge does not vary; shifts are averaged, or summed up, too."""
    claim = at.first
    text = others_equal(at)
    axes = reduced(at.relation.source, at.origin, claim.scale.ndim)
    if text or axes is None:
        return text or f"{kind(at.node)}: its axes are not known"
    scale, shift = claim.scale, claim.shift
    if kind(at.node) == "ReduceMean":
        shift = shift.mean(axes, keepdims=True)
    elif kind(at.node) == "ReduceSum" and all(shift.shape[axis] != 1 for axis in axes):  # as many as there are
        shift = shift.sum(axes, keepdims=True)
    elif kind(at.node) not in ("ReduceMax", "ReduceMin", "ReduceLogSumExp") and shift.any():
        return f"{kind(at.node)} of what is shifted"
    if any(array.shape[axis] != 1 for array in (scale, shift) for axis in axes):
        return f"{kind(at.node)} takes together what is scaled differently"
    if kind(at.node) == "ReduceLogSumExp" and (scale != 1).any():
        return f"{kind(at.node)} of what is scaled"
    if kind(at.node) not in ("ReduceMean", "ReduceSum") and (scale <= 0).any():
        return f"{kind(at.node)} of what is scaled by a negative number"
    if at.node.attributes.get_int("keepdims", 1) == 0:
        scale, shift = scale.squeeze(axes), shift.squeeze(axes)
    return scale, shift


def picture(at: Reading) -> Carried:
    """Col2Im adds up what is scaled alike in the block of rows of one channel."""
    claim, text, block = at.first, others_equal(at), at.relation.source.constant(at.origin.inputs[2])
    if text or block is None or claim.shift.any() or claim.scale.shape[2] != 1:
        return text or "Col2Im of what is shifted, or scaled differently along its columns"
    batch, rows, _ = claim.scale.shape
    scale = claim.scale.reshape(batch, -1, int(block.prod()) if rows > 1 else 1)
    if (scale != scale[..., :1]).any():
        return "Col2Im adds up what is scaled differently"
    scale = scale[..., 0].reshape(batch, -1, *(1,) * block.size)
    return scale, np.zeros_like(scale)


def softmax(at: Reading) -> Carried:
    """What is added along its axis drops out."""
    claim = at.first
    axis = at.node.attributes.get_int("axis", -1)
    if (claim.scale != 1).any() or claim.shift.shape[axis] != 1 or at.relation.file.opset(at.node) < 13:
        return f"{kind(at.node)} of what is scaled, or shifted differently along its axis"
    return np.ones(()), np.zeros(())


def resize(at: Reading) -> Carried:
    """Weighted averages of one channel, whose weights sum to 1."""
    claim = at.first
    channel = along(claim.scale, 1, claim.scale.shape[1]) if claim.scale.ndim > 2 else None
    shifts = along(claim.shift, 1, claim.shift.shape[1]) if claim.scale.ndim > 2 else None
    crops = at.node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    text = others_equal(at)
    if text or channel is None or shifts is None or crops or at.node.attributes.get_int("exclude_outside", 0) != 0:
        return text or "Resize takes together what is scaled differently"
    varies = claim.scale.shape[1] > 1 or claim.shift.shape[1] > 1
    if varies and not _keeps_channels(at.relation.source, at.origin, claim.scale.ndim):
        return "Resize takes channels together that are scaled differently"
    return claim.scale, claim.shift


def grid_sample(at: Reading) -> Carried:
    """Weighted averages of one channel at the places of a grid; the weights sum to 1 where no zeros are around."""
    claim, same = at.first, equal(at.relation, at.origin.inputs[1], at.node.inputs[1])
    if not isinstance(same, bool):
        return same
    if any(n != 1 for array in (claim.scale, claim.shift) for n in array.shape[2:]):
        return "GridSample takes together what is scaled differently"
    if at.node.attributes.get_string("padding_mode", "zeros") == "zeros" and claim.shift.any():
        return "GridSample reads zeros where the source reads a shift"
    return claim.scale, claim.shift


def _keeps_channels(side: Side, origin: ir.Node, rank: int) -> bool:
    """Tell whether a Resize leaves axis 1 as it is."""
    axes = [axis_of(axis, rank) for axis in origin.attributes.get_ints("axes", range(rank)) or ()]
    if 1 not in axes:
        return True
    _, _, *given = [*inputs_of(origin), None, None][:4]
    scales, sizes = (None if value is None else side.numbers(value) for value in given)
    shapes = side.shapes(origin.inputs[0]) if origin.inputs[0] is not None else ()
    if scales and scales[0].size:
        return all(array[axes.index(1)] == 1 for array in scales)
    return bool(sizes) and all(
        array[axes.index(1)] == shape[1] for array, shape in zip(sizes or (), shapes, strict=True)
    )


def pad(at: Reading) -> Carried:
    """A border of v becomes one of (v - t) / s, where that is one number; mirrored borders move elements."""
    claim = at.first
    widths = [side.numbers(inputs[1]) for side, inputs in _sides(at) if inputs[1] is not None]
    axes = [_integers(side, inputs, claim.scale.ndim) for side, inputs in _sides(at)]
    if len(widths) != 2 or any(w is None for w in widths) or axes[0] != axes[1]:
        return "Pad: its widths are not known"
    if not all(map(np.array_equal, widths[0] or (), widths[1] or ())):
        return Wrong("operand 'pads' of Pad holds other integers")
    if not alike_beyond(at.relation.source, at.origin.inputs[1], at.relation.file, at.node.inputs[1]):
        return "Pad: its widths may differ at other sizes"
    where = axes[0]
    every = [array.reshape(2, -1) for array in widths[0] or ()]
    padded = [axis for index, axis in enumerate(where) if any(half[:, index].any() for half in every)]
    asked = claim.scale if at.asked is None else at.asked
    varies = any(array.shape[axis] != 1 for array in (claim.scale, claim.shift, asked) for axis in padded)
    if at.node.attributes.get_string("mode", "constant") != "constant":
        text = "Pad along axes on which what it reads is scaled differently"
        return text if varies else (claim.scale, claim.shift)
    values = [
        np.zeros(()) if len(inputs) < 3 or inputs[2] is None else side.constant(inputs[2])
        for side, inputs in _sides(at)
    ]
    if values[0] is None or values[1] is None:
        return "Pad: what it pads with is not known"
    if varies:
        fixed = at.relation.file.fixed(at.node.inputs[1])
        return _bordered(at, None if fixed is None else fixed.reshape(2, -1), where, (values[0], values[1]))
    wanted = (values[0].reshape(()) - claim.shift) / claim.scale
    wrong = compare(
        np.broadcast_to(values[1].reshape(()), wanted.shape),
        at.relation.file.type_of(at.node.inputs[0] or at.node.outputs[0]),
        wanted,
    )
    lost = lost_bound(at.relation.source, at.origin.outputs[0], values[1], values[0], claim.scale, claim.shift)
    return wrong.of("what Pad pads with") if wrong else lost or (claim.scale, claim.shift)


def _bordered(at: Reading, widths: Array | None, where: tuple[int, ...], values: tuple[Array, Array]) -> Carried:
    """Return the gauge behind a Pad along axes on which it varies: in the border, t = w - s v of the two borders.

    That holds at any s: at the one that the result is said to have, or 1.

    Args:
        widths: before and after, by axis of ``where``; None where they are not the same at all sizes.
        values: the source's border w and the file's border v.
    """
    scale, shift = at.first.scale, at.first.shift
    shapes = at.relation.file.shapes(at.first.value)
    around = np.zeros((scale.ndim, 2), np.int64)
    if widths is not None:
        around[list(where)] = widths.T
    sizes = [{shape[axis] for shape in shapes} if around[axis].any() else {1} for axis in range(scale.ndim)]
    if widths is None or (widths < 0).any() or any(len(found) != 1 for found in sizes):
        return "Pad along axes on which what it reads is scaled differently, by widths that are not one"
    if not all(np.isfinite(value).all() for value in values):
        return "Pad with what is not finite, along axes on which what it reads is scaled differently"
    inner = tuple(next(iter(found)) for found in sizes)
    border = np.pad(np.zeros(inner, bool), around, constant_values=True)
    asked = np.ones((1,) * scale.ndim) if at.asked is None else at.asked
    if any(array.shape[axis] != 1 for array in (scale, asked) for axis in where if around[axis].any()):
        scale = np.pad(np.broadcast_to(scale, np.broadcast_shapes(scale.shape, inner)), around)
        scale = np.where(border, asked, scale)
    moved = np.pad(np.broadcast_to(shift, np.broadcast_shapes(shift.shape, inner)), around)
    return scale, np.where(border, values[0].reshape(()) - scale * values[1].reshape(()), moved)


def _sides(at: Reading) -> list[tuple[Side, list[ir.Value | None]]]:
    return [(at.relation.source, inputs_of(at.origin)), (at.relation.file, inputs_of(at.node))]


def _integers(side: Side, inputs: list[ir.Value | None], rank: int) -> tuple[int, ...]:
    array = side.constant(inputs[3]) if len(inputs) > 3 else None
    return tuple(range(rank)) if array is None else tuple(axis_of(int(axis), rank) for axis in array.reshape(-1))
