"""Conv takes an affine map over: behind it into its rows, in front of it into its columns.

Weight W [O, I/g, k...], bias b [O] (absent means 0), input channel of column j in the group of row o:
c(o, j) = group(o) * I/g + j.

Behind (y = s * conv(x) + t, per output channel): W'[o] = s[o] W[o], b' = s b + t. Any rank, groups, dilations, strides,
padding: the output is linear in W and b whatever the border is.

In front (conv(s * x + t), per input channel): W'[o, j] = W[o, j] s[c(o, j)],
b'[o] = b[o] + sum_{j, taps} W[o, j] t[c(o, j)].

A weight stored in integers takes a map behind it as :mod:`.absorb_quantized` says, one in front as :mod:`.weight` says.

Refused:
- the weight is computed at run time, or the bias where it changes (behind, or in front with t != 0);
- behind, only the bias is stored in integers;
- the map varies along another axis than the channels;
- in front, with padding and t != 0: the border is padded with 0, which is not t, so the border would come out wrong;
- the new weights overflow float16.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.absorb_quantized import behind_convolution, is_quantized
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    along,
    array_of,
    copy_cost,
    derive,
    dtype_of,
    fits,
    integer,
    ints,
    is_constant,
    optional,
    required,
    scaled,
    shape_of,
    storable,
    string,
)
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.weight import (
    bias_refused,
    computed,
    dtype_of_weight,
    is_fixed,
    name_of_weight,
    overflows,
    shape_of_weight,
    sum_over,
    take,
)


def varies_elsewhere(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    """Refuse a map that is not channel-wise."""
    if mapping.axes <= {1}:
        return None
    return Refusal(f"it varies along other axes than the channels of {describe(node)}", node)


def behind_refused(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    """Return what a convolution with a float weight refuses behind it."""
    weight, bias = required(node, 1), optional(node, 2)
    if not is_constant(weight):
        return computed(node)
    if bias is not None and not is_constant(bias):
        if is_quantized(bias):
            return Refusal(f"the bias of {describe(node)} is quantized and its weight is not", node)
        return Refusal(f"the bias of {describe(node)} is computed at run time", node)
    return varies_elsewhere(node, mapping)


def in_front_refused(node: ir.Node, index: int, mapping: AffineMap) -> Refusal | None:
    """Return what both convolutions refuse in front of them, the border left out."""
    if index != 0:
        return Refusal(f"{describe(node)} reads it as its weight", node)
    if not is_fixed(required(node, 1)):
        return computed(node)
    return bias_refused(node, mapping) or varies_elsewhere(node, mapping)


def new_bias(region: Region, node: ir.Node, size: int, compute: Array, *, keep_absent: bool) -> ir.Value | None:
    """Return the bias ``compute`` [size] as a constant; None where there was none and it would be zero."""
    bias = optional(node, 2)
    if bias is None:
        if keep_absent:
            return None
        weight = required(node, 1)
        stem = name_of_weight(weight).removesuffix(".weight")
        return region.constant(lambda: compute, (size,), dtype_of_weight(weight), name=f"{stem}.bias")
    return derive(region, bias, lambda _old: compute, (size,))


def behind(node: ir.Node, mapping: AffineMap, factor: Array, total: Array) -> BackwardPlan | Refusal:
    """Plan weights ``weight * factor`` and a bias ``total`` [O] that carry a map behind a (transposed) convolution."""
    weight, bias = required(node, 1), optional(node, 2)
    dtype = dtype_of(weight)
    if not fits(dtype, lambda: array_of(weight) * factor) or not storable(dtype, total):
        return overflows(node, dtype)

    def build(region: Region) -> ir.Value:
        new_weight = weight if mapping.no_scale else scaled(region, weight, factor)
        new = new_bias(region, node, total.size, total, keep_absent=mapping.no_shift)
        inputs = [node.inputs[0], new_weight] + ([] if new is None else [new])
        return region.replace(node, inputs).outputs[0]

    extra = (0.0 if mapping.no_scale else copy_cost(weight, node)) + copy_cost(bias, node)
    return BackwardPlan(build, (node,), (node,), extra)


def in_front(node: ir.Node, mapping: AffineMap, factor: Array, total: Array, search: Forward) -> ForwardPlan | Refusal:
    """Plan weights ``weight * factor`` and a bias ``total`` [O] that take a map in front of one over."""
    weight, bias = required(node, 1), optional(node, 2)
    taken = take(node, weight, factor, search)
    if isinstance(taken, Refusal):
        return taken
    dtype = dtype_of_weight(weight)
    if not mapping.no_shift and not storable(dtype, total):
        return overflows(node, dtype)

    def build(region: Region, raw: ir.Value) -> None:
        new = bias if mapping.no_shift else new_bias(region, node, total.size, total, keep_absent=False)
        inputs = [raw, taken.build(region)] + ([] if new is None else [new])
        region.same(node.outputs[0], region.replace(node, inputs).outputs[0])

    extra = taken.cost + (0.0 if mapping.no_shift else copy_cost(bias, node))
    return ForwardPlan(build, (*taken.old, node), (node,), extra)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind the convolution."""
    del index
    if is_quantized(optional(node, 1)):
        return behind_convolution(node, mapping, search)
    refused = behind_refused(node, mapping)
    if refused is not None:
        return refused
    weight, bias = required(node, 1), optional(node, 2)
    shape = shape_of(weight)
    scale, shift = along(mapping.scale, 1, shape[0]), along(mapping.shift, 1, shape[0])
    old_bias = np.zeros(shape[0]) if bias is None else array_of(bias)
    total = scale * old_bias + shift

    return behind(node, mapping, scale.reshape(-1, *(1,) * (len(shape) - 1)), total)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the convolution."""
    refused = in_front_refused(node, index, mapping)
    if refused is not None:
        return refused
    if not mapping.no_shift and is_padded(node):
        return Refusal(f"{describe(node)} pads with zeros and the shift is not zero", node)
    weight, bias = required(node, 1), optional(node, 2)
    shape = shape_of_weight(weight)
    groups = integer(node, "group", 1)
    channels = shape[1] * groups
    ones = (1,) * (len(shape) - 2)

    def per_row(array: Array) -> Array:
        """Spread a per-input-channel vector over [O, I/g, 1...]."""
        grouped = along(array, 1, channels).reshape(groups, 1, shape[1])
        return np.broadcast_to(grouped, (groups, shape[0] // groups, shape[1])).reshape(shape[0], shape[1], *ones)

    total = np.zeros(shape[0])
    if not mapping.no_shift:
        total = sum_over(weight, per_row(mapping.shift), range(1, len(shape))).reshape(-1)
        total = total if bias is None else total + array_of(bias)
    return in_front(node, mapping, per_row(mapping.scale), total, search)


def is_padded(node: ir.Node) -> bool:
    """Tell whether a Conv reads any zero that is not in its input (when in doubt, yes).

    ``auto_pad`` SAME pads nothing where every window is 1 wide: total = (ceil(n / stride) - 1) stride + 1 - n <= 0.
    """
    automatic = string(node, "auto_pad", "NOTSET")
    kernel = shape_of_weight(required(node, 1))[2:]
    if automatic == "VALID":
        return False
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return any(size != 1 for size in kernel)
    return any(width != 0 for width in ints(node, "pads", (0,) * 2 * len(kernel)))
