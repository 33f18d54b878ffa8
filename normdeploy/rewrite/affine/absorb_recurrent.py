"""LSTM, GRU and RNN take an affine map in front of them over, into the weights of their input.

Each gate of each step reads W x + Wb + R h + Rb. With x -> s * x + t along the last axis of X [seq, batch, input]
(or [batch, seq, input] with layout 1): W'[d, g, i] = W[d, g, i] s[i], Wb'[d, g] = Wb[d, g] + sum_i W[d, g, i] t[i],
for every direction d and gate row g; R and Rb stay. Steps behind a sequence's end are not computed, so what they hold
does not matter. Activations, clip, linear_before_reset and peepholes act on the sum, which is the same.

Refused:
- any other input than X (lengths, initial states);
- the weight or the bias is computed at run time;
- the map varies along another axis than the features;
- float16 overflow.

Behind a recurrent operator nothing is linear in its weights.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.constant import (
    along,
    array_of,
    contracted,
    copy_cost,
    derive,
    dtype_of,
    fits,
    is_constant,
    optional,
    required,
    scaled,
    shape_of,
)
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.plan import ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.search import Forward, describe
from normdeploy.rewrite.affine.weight import computed, overflows

_BIAS = 3


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the operator's input sequence."""
    del search
    weight, bias = required(node, 1), optional(node, _BIAS)
    if index != 0:
        return Refusal(f"{describe(node)} reads it as something else than its input sequence", node)
    if not is_constant(weight):
        return computed(node)
    if bias is not None and not is_constant(bias):
        return Refusal(f"the bias of {describe(node)} is computed at run time", node)
    if not mapping.axes <= {2}:
        return Refusal(f"it varies along other axes than the features of {describe(node)}", node)
    directions, rows, size = shape_of(weight)
    scale, shift = along(mapping.scale, 2, size), along(mapping.shift, 2, size)
    total = np.zeros((directions, 2 * rows)) if bias is None else array_of(bias).copy()
    if not mapping.no_shift:
        total[:, :rows] += contracted(weight, shift.reshape(1, 1, -1), [2])[:, :, 0]
    if not fits(dtype_of(weight), lambda: array_of(weight) * scale) or not fits(dtype_of(weight), lambda: total):
        return overflows(node, dtype_of(weight))

    def build(region: Region, raw: ir.Value) -> None:
        inputs = [raw, weight if mapping.no_scale else scaled(region, weight, scale.reshape(1, 1, -1))]
        inputs += list(node.inputs[2:])  # type: ignore[arg-type] # absent optional inputs are None
        if not mapping.no_shift:
            if bias is None:
                stem = str(weight.name).removesuffix(".weight")
                new = region.constant(lambda: total, total.shape, dtype_of(weight), name=f"{stem}.bias")
                inputs += [None] * (_BIAS + 1 - len(inputs))  # type: ignore[list-item]
            else:
                new = derive(region, bias, lambda _old: total)
            inputs[_BIAS] = new
        made = region.replace(node, inputs)
        for old, fresh in zip(node.outputs, made.outputs, strict=True):
            if old.uses() or old.is_graph_output():
                region.same(old, fresh)

    extra = (0.0 if mapping.no_scale else copy_cost(weight, node)) + (
        0.0 if mapping.no_shift else copy_cost(bias, node)
    )
    return ForwardPlan(build, (node,), (node,), extra)
