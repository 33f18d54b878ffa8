"""ConvTranspose takes an affine map over.

Weight W [Cin, Cout/g, k...]: row i feeds output channel group(i) * Cout/g + j, group(i) = i // (Cin/g).

Behind (s * y + t per output channel): W'[i, j] = s[group(i) Cout/g + j] W[i, j], b' = s b + t. Note that the output
channel is *not* the first axis of W; where Cin equals Cout the mistake keeps every shape right.

In front (s * x + t per input channel): W'[i] = s[i] W[i]. Each output position sums a different set of taps, so t
passes only where one tap reaches every position: all windows 1 wide, all strides 1, no padding, no output padding; then
b'[c] = b[c] + sum_{i in group(c)} W[i, j] t[i].

Refused: weights computed at run time, a map along another axis, t != 0 in front of a wider window, float16 overflow.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.absorb_conv import behind, behind_refused, in_front, in_front_refused
from normdeploy.rewrite.affine.absorb_quantized import behind_convolution, is_quantized
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    along,
    array_of,
    integer,
    ints,
    optional,
    required,
    shape_of,
)
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal
from normdeploy.rewrite.affine.weight import shape_of_weight, values_of


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind the transposed convolution."""
    del index
    if is_quantized(optional(node, 1)):
        return behind_convolution(node, mapping, search)
    refused = behind_refused(node, mapping)
    if refused is not None:
        return refused
    weight, bias = required(node, 1), optional(node, 2)
    shape = shape_of(weight)
    groups = integer(node, "group", 1)
    channels = shape[1] * groups
    scale, shift = along(mapping.scale, 1, channels), along(mapping.shift, 1, channels)
    total = scale * (np.zeros(channels) if bias is None else array_of(bias)) + shift
    spread = np.repeat(scale.reshape(groups, shape[1]), shape[0] // groups, axis=0)
    factor = spread.reshape(shape[0], shape[1], *(1,) * (len(shape) - 2))
    return behind(node, mapping, factor, total)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the transposed convolution."""
    refused = in_front_refused(node, index, mapping)
    if refused is not None:
        return refused
    if not mapping.no_shift and not _one_tap(node):
        return Refusal(f"the border of {describe(node)} sees fewer taps and the shift is not zero", node)
    weight, bias = required(node, 1), optional(node, 2)
    shape = shape_of_weight(weight)
    groups = integer(node, "group", 1)
    ones = (1,) * (len(shape) - 1)
    total = np.zeros(shape[1] * groups)
    if not mapping.no_shift:
        shift = along(mapping.shift, 1, shape[0]).reshape(groups, shape[0] // groups, 1)
        total = (values_of(weight).reshape(groups, shape[0] // groups, shape[1]) * shift).sum(axis=1).reshape(-1)
        total = total if bias is None else total + array_of(bias)
    factor = along(mapping.scale, 1, shape[0]).reshape(-1, *ones)
    return in_front(node, mapping, factor, total, search)


def _one_tap(node: ir.Node) -> bool:
    window = shape_of_weight(required(node, 1))[2:]
    return (
        all(size == 1 for size in window)
        and all(stride == 1 for stride in ints(node, "strides", ()))
        and not any(ints(node, "pads", ()))
        and not any(ints(node, "output_padding", ()))
        and "output_shape" not in node.attributes
    )
