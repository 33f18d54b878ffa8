"""Conv takes an affine map over: behind it into its rows, in front of it into its columns.

Weight W [O, I/g, k...], bias b [O] (absent means 0), input channel of column j in the group of row o:
c(o, j) = group(o) * I/g + j.

Behind (y = s * conv(x) + t, per output channel): W'[o] = s[o] W[o], b' = s b + t. Any rank, groups, dilations, strides,
padding: the output is linear in W and b whatever the border is.

In front (conv(s * x + t), per input channel): W'[o, j] = W[o, j] s[c(o, j)],
b'[o] = b[o] + sum_{j, taps} W[o, j] t[c(o, j)].

Refused:
- the weight or the bias is computed at run time;
- the map varies along another axis than the channels;
- in front, with padding and t != 0: the border is padded with 0, which is not t, so the border would come out wrong;
- the new weights overflow float16.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.absorb_quantized import behind_convolution, is_quantized
from normdeploy.rewrite.affine.constant import (
    along,
    array_of,
    contracted,
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
    string,
)
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.search import Backward, Forward, describe


def weights_refused(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    """Return what both directions refuse: run-time weights, a map that is not channel-wise."""
    weight, bias = required(node, 1), optional(node, 2)
    if is_quantized(weight) or is_quantized(bias):
        return Refusal(f"the weights of {describe(node)} are quantized, and so take a scale behind it only", node)
    if not is_constant(weight):
        return Refusal(f"the weight of {describe(node)} is computed at run time", node)
    if bias is not None and not is_constant(bias):
        return Refusal(f"the bias of {describe(node)} is computed at run time", node)
    if not mapping.axes <= {1}:
        return Refusal(f"it varies along other axes than the channels of {describe(node)}", node)
    return None


def overflows(node: ir.Node) -> Refusal:
    """Return the refusal of a weight that would not fit its dtype."""
    return Refusal(f"the weights of {describe(node)} would overflow {dtype_of(required(node, 1)).name.lower()}", node)


def new_bias(region: Region, node: ir.Node, size: int, compute: Array, *, keep_absent: bool) -> ir.Value | None:
    """Return the bias ``compute`` [size] as a constant; None where there was none and it would be zero."""
    bias = optional(node, 2)
    if bias is None:
        if keep_absent:
            return None
        stem = str(required(node, 1).name).removesuffix(".weight")
        return region.constant(lambda: compute, (size,), dtype_of(required(node, 1)), name=f"{stem}.bias")
    return derive(region, bias, lambda _old: compute, (size,))


def behind(node: ir.Node, mapping: AffineMap, factor: Array, total: Array) -> BackwardPlan | Refusal:
    """Plan weights ``weight * factor`` and a bias ``total`` [O] that carry a map behind a (transposed) convolution."""
    weight, bias = required(node, 1), optional(node, 2)
    if not _fit(weight, factor, total):
        return overflows(node)

    def build(region: Region) -> ir.Value:
        new_weight = weight if mapping.no_scale else scaled(region, weight, factor)
        new = new_bias(region, node, total.size, total, keep_absent=mapping.no_shift)
        inputs = [node.inputs[0], new_weight] + ([] if new is None else [new])
        return region.replace(node, inputs).outputs[0]

    extra = (0.0 if mapping.no_scale else copy_cost(weight, node)) + copy_cost(bias, node)
    return BackwardPlan(build, (node,), (node,), extra)


def in_front(node: ir.Node, mapping: AffineMap, factor: Array, total: Array) -> ForwardPlan | Refusal:
    """Plan weights ``weight * factor`` and a bias ``total`` [O] that take a map in front of one over."""
    weight, bias = required(node, 1), optional(node, 2)
    if not _fit(weight, factor, total):
        return overflows(node)

    def build(region: Region, raw: ir.Value) -> None:
        new_weight = weight if mapping.no_scale else scaled(region, weight, factor)
        new = bias if mapping.no_shift else new_bias(region, node, total.size, total, keep_absent=False)
        inputs = [raw, new_weight] + ([] if new is None else [new])
        region.same(node.outputs[0], region.replace(node, inputs).outputs[0])

    extra = (0.0 if mapping.no_scale else copy_cost(weight, node)) + (
        0.0 if mapping.no_shift else copy_cost(bias, node)
    )
    return ForwardPlan(build, (node,), (node,), extra)


def _fit(weight: ir.Value, factor: Array, total: Array) -> bool:
    return fits(dtype_of(weight), lambda: array_of(weight) * factor) and fits(dtype_of(weight), lambda: total)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind the convolution."""
    del index
    if is_quantized(optional(node, 1)):
        return behind_convolution(node, mapping, search)
    refused = weights_refused(node, mapping)
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
    del search
    if index != 0:
        return Refusal(f"{describe(node)} reads it as its weight", node)
    refused = weights_refused(node, mapping)
    if refused is not None:
        return refused
    if not mapping.no_shift and is_padded(node):
        return Refusal(f"{describe(node)} pads with zeros and the shift is not zero", node)
    weight, bias = required(node, 1), optional(node, 2)
    shape = shape_of(weight)
    groups = integer(node, "group", 1)
    channels = shape[1] * groups
    ones = (1,) * (len(shape) - 2)

    def per_row(array: Array) -> Array:
        """Spread a per-input-channel vector over [O, I/g, 1...]."""
        grouped = along(array, 1, channels).reshape(groups, 1, shape[1])
        return np.broadcast_to(grouped, (groups, shape[0] // groups, shape[1])).reshape(shape[0], shape[1], *ones)

    scale, shift = per_row(mapping.scale), per_row(mapping.shift)
    total = np.zeros(shape[0]) if bias is None else array_of(bias)
    if not mapping.no_shift:
        total = total + contracted(weight, shift, range(1, len(shape))).reshape(-1)
    return in_front(node, mapping, scale, total)


def is_padded(node: ir.Node) -> bool:
    """Tell whether a Conv reads any zero that is not in its input (when in doubt, yes).

    ``auto_pad`` SAME pads nothing where every window is 1 wide: total = (ceil(n / stride) - 1) stride + 1 - n <= 0.
    """
    automatic = string(node, "auto_pad", "NOTSET")
    kernel = shape_of(required(node, 1))[2:]
    if automatic == "VALID":
        return False
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return any(size != 1 for size in kernel)
    return any(width != 0 for width in ints(node, "pads", (0,) * 2 * len(kernel)))
