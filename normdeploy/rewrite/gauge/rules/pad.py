"""Pad: what is moved to the border is moved; what is padded with one number must stay one number.

That number is v' = (v - t) / s of the border's own gauge. Where channels are added, 0 is 0 in each of them at any
scale: what they hold has t = 0 and a scale of its own. A Pad that only cuts off is a Slice.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.operator_inputs import optional, required
from normdeploy.rewrite.affine.axes import Dims
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.gauge import Gauge, joined
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused
from normdeploy.rewrite.gauge.rules import moves
from normdeploy.rewrite.gauge.rules.weights import require_small
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims

_ZEROS = "pads with zeros, which a shift would change"


def tie(node: ir.Node, ties: Ties) -> Gauge | None:
    """Tie Pad: reflected, repeated and wrapped values are moved ones; one number must stay one number.

    v' = (v - t) / s is one number for all cells where t = 0 and v = 0, or where s and t are one.
    """
    if not writes_number(node):
        moves.follow(node, ties, moves.padded)
        return None
    dims, gauge = known_dims(required(node, 0)), ties.operand(node, 0)
    acts = moves.padded(node, len(dims))
    if not acts.known:
        raise Unfollowed("pads by widths that are known at run time only")
    number = _number(node)
    mode = ties.pads.get(node)
    if number == 0 and mode is None and _adds_cells(gauge, acts, dims):
        return _with_zeros(node, ties, gauge, acts)
    flat = ties.along(gauge, acts.axes, Tie(node, "pads along the axis where it varies"))
    if number is None:
        ties.pinned(flat, Tie(node, "pads with what is known at run time only"))
    elif math.prod(flat.cells) > 1:
        if mode == "loose":
            pass  # what is written tells
        elif number == 0 and mode is None:
            flat = ties.no_shift(flat, Tie(node, _ZEROS))
        else:
            ties.along(flat, range(flat.rank), Tie(node, "pads all channels with one number"))
    return flat


def writes_number(node: ir.Node) -> bool:
    """Tell whether a Pad writes a number, rather than cut off or repeat what is there (when in doubt, yes)."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return False
    widths = constant64(required(node, 1))
    return widths is None or bool((widths > 0).any())


def _number(node: ir.Node) -> float | None:
    """Return what is padded with; None where only the run tells."""
    value = optional(node, 2)
    number = np.zeros(1) if value is None else constant64(value)
    return None if number is None else float(number.reshape(-1)[0])


def _adds_cells(gauge: Gauge, acts: moves.Acts, dims: Dims) -> bool:
    """Tell whether cells are added along an axis on which the gauge varies, all of them known."""
    return any(gauge.cells[axis] > 1 for axis in acts.axes) and all(
        gauge.cells[axis] in (1, dims[axis]) for axis in acts.axes
    )


def _with_zeros(node: ir.Node, ties: Ties, gauge: Gauge, acts: moves.Acts) -> Gauge:
    """Return the gauge behind a Pad that adds zeros along axes on which the gauge varies."""
    varying = [axis for axis in acts.axes if gauge.cells[axis] > 1]
    widths = moves.pad_widths(node, gauge.rank)
    assert widths is not None  # the axes are known
    if any(max(widths[axis]) > 0 for axis in acts.axes if axis not in varying):
        gauge = ties.no_shift(gauge, Tie(node, _ZEROS))
    own = [widths[axis] if axis in varying else (0, 0) for axis in range(gauge.rank)]
    numbers = np.arange(gauge.scale_of.size).reshape(gauge.cells)
    numbers = np.pad(numbers, [(max(low, 0), max(high, 0)) for low, high in own], constant_values=-1)
    numbers = numbers[tuple(slice(max(-low, 0), min(high, 0) or None) for low, high in own)]
    added = ties.no_shift(ties.fresh([int((numbers < 0).sum())]), Tie(node, _ZEROS))
    numbers[numbers < 0] = np.arange((numbers < 0).sum()) + gauge.scale_of.size
    return joined([gauge, added]).picked(numbers)


def write(edit: Edit) -> None:
    """Let what is padded with follow: v' = (v - t) / s."""
    node, value = edit.node, optional(edit.node, 2)
    old = _number(node) if writes_number(node) else None
    if old is None:
        return
    scale, shift = edit.result()
    new = (old - shift) / scale
    acts = moves.padded(node, shift.ndim)
    if old == 0 and (not shift.any() or any(scale.shape[axis] > 1 for axis in acts.axes)):
        return  # what is added has no shift
    if not (new == new.reshape(-1)[0]).all():
        raise Refused(node, f"{describe(node)} pads all channels with one number, which it sends to several")
    dtype = node.outputs[0].dtype or ir.DataType.FLOAT
    require_small(node, dtype, new)
    name = f"{node.name or node.outputs[0].name}.value" if value is None else str(value.name)
    edit.read(2, edit.constant(lambda: np.array(new.reshape(-1)[0]), (), dtype, name=name, succeeds=value))
