"""A bias stored in integers: the int32 of a quantized layer, whose step is the input's times the weight's.

With step d_b per channel, and y = .. + beta d_b (q - z)::

    b' = (b + a) / s:    q' = q + a / d_b and d_b' = d_b / |s|, the integers with the sign of s

Its integers keep their numbers under scales. A shift (a) goes into them where it is one of whole steps: then nothing is
rounded. Any other makes it a bias of floats, since the integers would be those of another function; a runtime that
rounds it to steps is told of in the ledger. So shifts are tried here last, where a map would have to stay otherwise.

What is refused: integers that int32 does not hold, which such a runtime would cut off; a bias that is not one number
per channel, or is stored in blocks; one that Gemm multiplies by beta = 0.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import constant_tensor
from normdeploy.graph.linear_view import Form, Linear, layer_of
from normdeploy.graph.operator_inputs import array_of, required
from normdeploy.graph.weight import Weight, fixed_weight
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused
from normdeploy.rewrite.gauge.rules.integers import range_of, requantize
from normdeploy.rewrite.gauge.rules.weights import require_small, rescale
from normdeploy.rewrite.gauge.ties import Tie, Ties

WHOLE_STEPS = "whole steps"
"""How :class:`..ties.Ties` tells that shifts may go into biases that are stored in integers."""

_BROKEN = 1e-12
"""How far from a whole number, relative to its size, a number of steps may be that float64 computed."""


def stored_bias(linear: Linear) -> Weight | None:
    """Return the bias of a layer where it is stored in integers; None for any other."""
    bias = fixed_weight(linear.value(linear.bias))
    return None if bias is None or bias.quantized is None else bias


def has_stored_bias(node: ir.Node) -> bool:
    """Tell whether a layer has a bias stored in integers that takes shifts of whole steps."""
    linear = layer_of(node)
    bias = None if linear is None else stored_bias(linear)
    return linear is not None and bias is not None and _unfit(linear, bias) is None


def with_stored_bias(linear: Linear, ties: Ties, front: Gauge, result: Gauge, bias: Weight) -> Gauge:
    """Restrict a layer whose bias is stored in integers; return the gauge of its result.

    Args:
        linear: the layer.
        ties: the ties.
        front: of what it reads, varying along its channels alone.
        result: of what it writes.
        bias: the stored bias.
    """
    node = linear.node
    if bias.value in ties.of:
        ties.pinned(ties.of[bias.value], Tie(node, "reads it as its bias"))
    unfit = _unfit(linear, bias)
    if unfit is not None or ties.pads.get(node) != WHOLE_STEPS:
        why = unfit or Tie(node, "has a bias stored in integers")
        ties.no_shift(front, why)
        result = ties.no_shift(result, why)
    return result if unfit is None else ties.no_scale(result, unfit)


def _channel_axis(linear: Linear, rank: int) -> int:
    """Return the axis of a bias of ``rank`` that counts channels; it may be negative where there is none."""
    return 0 if linear.form is not Form.PRODUCT else rank - 2 if linear.turned_result else rank - 1


def _unfit(linear: Linear, bias: Weight) -> Tie | None:
    """Return why a bias stored in integers takes neither shifts nor scales; None where it does."""
    assert bias.quantized is not None
    node, weight = linear.node, fixed_weight(linear.value(linear.weight))
    if linear.beta == 0:
        return Tie(node, "multiplies its bias, stored in integers, by beta = 0")
    if bias.quantized.attributes.get_int("block_size", 0):
        return Tie(node, "has a bias stored in integers in blocks")
    if weight is None:
        return None  # such a layer cannot be followed, and says so itself
    outs, axis = linear.channels(weight.shape).outs, _channel_axis(linear, len(bias.shape))
    if axis < 0 or bias.shape[axis] != outs or math.prod(bias.shape) != outs:
        shape = list(bias.shape)
        return Tie(node, f"has a bias stored in integers of shape {shape}, which is not one number per channel")
    return None


def move_stored_bias(edit: Edit, linear: Linear, bias: Weight, added: Floats, scale: Floats) -> None:
    """Let the bias be (b + added) / scale.

    Args:
        edit: the change of the layer.
        linear: the layer. bias: its bias.
        added, scale: a number per channel, in units of the layer's result.

    Raises:
        Refused: it cannot be stored.
    """
    if _unfit(linear, bias) is not None:
        return  # nothing was let into it
    assert linear.bias is not None
    shape = bias.shape
    factor = 1.0 / scale.reshape(shape)
    moved = added.reshape(shape) / linear.beta
    if not moved.any():
        rescale(edit, linear.bias, bias, factor, rows=())
        return
    steps = moved / _steps_of(bias)
    whole = np.rint(steps)
    broken = np.abs(steps - whole) > _BROKEN * np.maximum(np.abs(steps), 1)
    if _fits(edit.node, bias, whole) and not broken.any():
        requantize(edit, linear.bias, bias, factor, whole.astype(np.int64))
    else:
        _in_floats(edit, linear.bias, bias, factor, moved, steps)


def _steps_of(bias: Weight) -> Floats:
    """Return the step of each number of a bias."""
    assert bias.quantized is not None
    steps = array_of(required(bias.quantized, 1)).reshape(-1)
    return np.broadcast_to(steps, (math.prod(bias.shape),)).reshape(bias.shape)


def _fits(node: ir.Node, bias: Weight, added: Floats) -> bool:
    """Tell whether the integers, ``added`` with them, fit their type.

    Raises:
        Refused: that is the int32 of a quantized layer, which a runtime rounds a bias of floats to as well.
    """
    tensor = constant_tensor(bias.stored)
    assert tensor is not None
    total = tensor.numpy().astype(np.float64) + added
    low, high = range_of(tensor.dtype)
    outside = ((total < low) | (total > high)).reshape(-1)
    if tensor.dtype == ir.DataType.INT32 and outside.any():
        at = int(outside.argmax())
        raise Refused(
            node,
            f"the bias of {describe(node)} would overflow int32: that of channel {at} would be "
            f"{total.reshape(-1)[at]:.3g} steps of {_steps_of(bias).reshape(-1)[at]:.3g}; fold before quantizing, or "
            "give that channel's weights a larger step",
        )
    return not outside.any()


def _in_floats(edit: Edit, index: int, bias: Weight, factor: Floats, moved: Floats, steps: Floats) -> None:
    """Store it in floats, as it stands for them, with what it takes; say what rounding would cost."""
    stored = constant_tensor(bias.stored)
    assert stored is not None
    total = (bias.array() + moved) * factor
    require_small(edit.node, bias.dtype, total)
    name = str(bias.stored.name)
    new = edit.constant(lambda: total, total.shape, bias.dtype, name=name, succeeds=bias.stored)
    edit.absorbs = True
    edit.read(index, new)
    lost = np.abs(steps - np.rint(steps)).reshape(-1)
    at = int(lost.argmax())
    edit.notes.append(
        f"the bias of {describe(edit.node)} is stored in {bias.dtype.name.lower()} now: channel {at} takes "
        f"{steps.reshape(-1)[at]:.9g} steps of its {stored.dtype.name.lower()}; a runtime that rounds it to such steps "
        f"moves it by at most {lost[at]:.2g} of one"
    )
