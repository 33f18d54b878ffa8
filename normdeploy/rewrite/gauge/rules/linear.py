"""Linear operators absorb: the gauges of what they read and what they write have nothing to do with each other.

With input channel c and output channel o, for every weight W[..] that leads from c to o::

    W' = W s_x[c] / s_y[o],    b' = (b + sum W t_x[c] - t_y[o]) / s_y[o]

Which weight leads from which channel to which is described in :mod:`normdeploy.graph.linear_view`. The weights of LSTM,
GRU and RNN absorb in front alone.

What restricts: the gauge varies along the channels alone; where zeros are padded (or may be read outside, DeformConv;
or where the number of taps that reach a position differs, ConvTranspose) t_x = 0; a bias that is computed cannot change
by a shift; one that is stored in integers takes what :mod:`.stored_bias` says; a weight stored in integers takes
factors as its steps allow; a computed weight takes nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import constant_tensor, is_constant
from normdeploy.graph.linear_view import Channels, Form, Linear, linear_of
from normdeploy.graph.operator_inputs import array_of, optional
from normdeploy.graph.traits import is_standard
from normdeploy.graph.weight import Weight, fixed_weight
from normdeploy.rewrite.gauge.gauge import Gauge, fixed
from normdeploy.rewrite.gauge.operator_edit import Edit
from normdeploy.rewrite.gauge.rules.stored_bias import move_stored_bias, stored_bias, with_stored_bias
from normdeploy.rewrite.gauge.rules.weights import divided, put, rescale
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie a convolution or a recurrent operator."""
    linear = _linear(node)
    weight = fixed_weight(linear.value(linear.weight))
    if weight is None:
        raise Unfollowed("has a weight that is computed at run time")
    gauge, recurrent = ties.operand(node, 0), linear.form is Form.RECURRENT
    known_dims(node.outputs[0])
    channel = linear.data_axis(gauge.rank)
    if gauge.rank != (3 if recurrent else len(weight.shape)):
        raise Unfollowed
    channels = linear.channels(weight.shape)
    if recurrent:
        for value in node.inputs[1:]:
            if value is not None and constant_tensor(value) is None and value in ties.of:
                ties.pinned(ties.of[value], Tie(node, "reads it as something else than its input sequence"))
    elif weight.quantized is not None and weight.value in ties.of:
        ties.pinned(ties.of[weight.value], Tie(node, "reads it as its weight"))
    elsewhere = Tie(node, "takes nothing that varies along another axis than its channels")
    gauge = ties.along(gauge, [axis for axis in range(gauge.rank) if axis != channel], elsewhere)
    _restrict_front(linear, ties, gauge, weight, channels)
    if recurrent:
        for value in node.outputs[1:]:
            if value.shape is not None:
                ties.of[value] = fixed(value.shape.rank())
        return fixed(len(known_dims(node.outputs[0])))
    cells = tuple(channels.outs if axis == 1 else 1 for axis in range(gauge.rank))
    result = ties.fresh(cells, slack=True)
    bias = linear.value(linear.bias)
    stored = stored_bias(linear)
    if stored is not None:
        result = with_stored_bias(linear, ties, gauge, result, stored)
    elif bias is not None and not is_constant(bias):
        why = Tie(node, "has a bias that is computed at run time, which cannot take a shift")
        ties.no_shift(gauge, why)
        result = ties.no_shift(result, why)
        result = ties.no_scale(result, Tie(node, "has a bias that is computed at run time, which cannot be scaled"))
    _restrict_steps(node, ties, gauge, result, weight, channels)
    return result


def _linear(node: ir.Node) -> Linear:
    linear = linear_of(node)
    assert linear is not None  # the rule's operators are
    return linear


def _restrict_front(linear: Linear, ties: Ties, gauge: Gauge, weight: Weight, channels: Channels) -> None:
    node = linear.node
    if is_standard(node, "DeformConv"):
        ties.no_shift(gauge, Tie(node, "may sample zeros outside its input, which a shift would change"))
    elif linear.form is Form.CONVOLUTION and pads_zeros(node, weight.shape[2:]):
        ties.no_shift(gauge, Tie(node, "pads with zeros, which a shift would change"))
    elif linear.form is Form.TRANSPOSED and not _one_tap(node, weight.shape[2:]):
        ties.no_shift(gauge, Tie(node, "reaches its positions by different taps, which a shift would show"))
    elif channels.written is None:
        bias = linear.value(linear.bias)
        if bias is not None and not is_constant(bias):
            ties.no_shift(gauge, Tie(node, "has a bias that is computed at run time, which cannot take a shift"))
        if weight.quantized is not None and 2 not in weight.free_axes(channels.chosen):
            ties.along_scale(gauge, [2], Tie(node, "has integer weights without a step per input"))


def _restrict_steps(node: ir.Node, ties: Ties, gauge: Gauge, result: Gauge, weight: Weight, channels: Channels) -> None:
    """Tie what the steps of an integer weight cannot tell apart."""
    if weight.quantized is None:
        return
    assert channels.written is not None
    free = weight.free_axes(channels.chosen)
    why = Tie(node, "has integer weights whose steps do not vary along with it")
    for scales, index in ((gauge, channels.read), (result, channels.written)):
        if scales.cells[1] == 1:
            continue
        blind = tuple(axis for axis in range(index.ndim) if axis not in free and index.shape[axis] > 1)
        if not blind:
            continue
        first = index[tuple(slice(0, 1) if axis in blind else slice(None) for axis in range(index.ndim))]
        flat = scales.each(lambda array: array.reshape(-1))
        pairs = np.broadcast_to(first, index.shape).reshape(-1)
        ties.same_scale(flat.picked(index.reshape(-1)), flat.picked(pairs), why)


def pads_zeros(node: ir.Node, window: tuple[int, ...]) -> bool:
    """Tell whether a Conv reads any zero that is not in its input (when in doubt, yes).

    ``auto_pad`` SAME pads nothing where every window is 1 wide: total = (ceil(n / stride) - 1) stride + 1 - n <= 0.
    """
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    if automatic == "VALID":
        return False
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return any(size != 1 for size in window)
    return any(width != 0 for width in node.attributes.get_ints("pads", (0,) * 2 * len(window)))


def _one_tap(node: ir.Node, window: tuple[int, ...]) -> bool:
    """Tell whether one tap of a ConvTranspose reaches every position."""
    return (
        all(size == 1 for size in window)
        and all(stride == 1 for stride in node.attributes.get_ints("strides", ()))
        and not any(node.attributes.get_ints("pads", ()))
        and not any(node.attributes.get_ints("output_padding", ()))
        and "output_shape" not in node.attributes
    )


def write(edit: Edit) -> None:
    """Write the weights and the bias."""
    node = edit.node
    linear = _linear(node)
    weight = fixed_weight(linear.value(linear.weight))
    assert weight is not None
    channels = linear.channels(weight.shape)
    scale, shift = _front(edit, channels, linear.data_axis(len(weight.shape)))
    factor = scale[channels.read]
    if channels.written is None:
        rescale(edit, linear.weight, weight, factor, rows=channels.taps)
        _recurrent_bias(edit, weight, channels, shift)
        return
    s, t = edit.result()
    s, t = (np.broadcast_to(array.reshape(-1), (channels.outs,)) for array in (s, t))
    assert linear.bias is not None
    bias = linear.value(linear.bias)
    stored = stored_bias(linear)
    scaled = partial(rescale, edit, linear.weight, weight, factor, s[channels.written], rows=channels.taps)
    if stored is not None or (bias is not None and not is_constant(bias)):
        scaled()
        if stored is not None:
            move_stored_bias(edit, linear, stored, _through(weight, channels, shift) - t, s)
        return
    old = np.zeros(channels.outs) if bias is None else array_of(bias)
    added = _through(weight, channels, shift) - t
    scaled(bias=divided(old + added, s)[channels.written])
    new_bias(edit, linear.bias, weight, bias, old, added, s)


def _front(edit: Edit, channels: Channels, axis: int) -> tuple[Floats, Floats]:
    """Return s and t of the input channels; along other axes the cells are tied, and the first one stands for all."""
    cell = [slice(None) if at == axis else 0 for at in range(edit.operand(0)[0].ndim)]
    first = (array[tuple(cell)] for array in edit.operand(0))
    return tuple(np.broadcast_to(array, (channels.ins,)) for array in first)  # type: ignore[return-value] # two


def _through(weight: Weight, channels: Channels, shift: Floats) -> Floats:
    """Return what a shift in front adds to each output channel."""
    total = np.zeros(channels.outs)
    if not shift.any():
        return total
    assert channels.written is not None
    if 0 not in channels.taps:  # rows are output channels
        return weight.sum(shift[channels.read], channels.taps).reshape(-1)
    products = weight.array() * shift[channels.read]
    np.add.at(total, np.broadcast_to(channels.written, products.shape), products)
    return total


def new_bias(
    edit: Edit, index: int, weight: Weight, bias: ir.Value | None, old: Floats, added: Floats, scale: Floats
) -> None:
    """Let the bias be (old + added) / scale; an absent one stays absent where that is 0."""
    total = divided(old + added, scale)
    if np.array_equal(total, old):
        return
    tensor = constant_tensor(bias)
    dtype = weight.dtype if tensor is None else tensor.dtype
    put(edit, index, total, dtype, name=f"{weight.stem}.bias", key=(weight.value, bias, total.tobytes()))


def _recurrent_bias(edit: Edit, weight: Weight, channels: Channels, shift: Floats) -> None:
    """Add what a shift in front brings to the first half of the bias, [directions, gates | gates]."""
    if not shift.any():
        return
    bias = optional(edit.node, 3)
    directions, gates, _ = weight.shape
    total = np.zeros((directions, 2 * gates)) if bias is None else array_of(bias).copy()
    total[:, :gates] += weight.sum(shift[channels.read], [2])[:, :, 0]
    put(edit, 3, total, weight.dtype, name=f"{weight.stem}.bias")
