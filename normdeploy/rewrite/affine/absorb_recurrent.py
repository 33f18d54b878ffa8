"""LSTM, GRU and RNN take an affine map in front of them over, into the weights of their input.

Each gate of each step reads W x + Wb + R h + Rb. With x -> s * x + t along the last axis of X [seq, batch, input]
(or [batch, seq, input] with layout 1): W'[d, g, i] = W[d, g, i] s[i], Wb'[d, g] = Wb[d, g] + sum_i W[d, g, i] t[i],
for every direction d and gate row g; R and Rb stay. Steps behind a sequence's end are not computed, so what they hold
does not matter. Activations, clip, linear_before_reset and peepholes act on the sum, which is the same.

Refused:
- any other input than X (lengths, initial states);
- the weight is computed at run time, or the bias where it changes (t != 0);
- the map varies along another axis than the features;
- float16 overflow.

Behind a recurrent operator nothing is linear in its weights.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.constant import along, array_of, copy_cost, derive, optional, required, storable
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import ForwardPlan, Refusal, Region
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

_BIAS = 3


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the operator's input sequence."""
    weight, bias = required(node, 1), optional(node, _BIAS)
    if index != 0:
        return Refusal(f"{describe(node)} reads it as something else than its input sequence", node)
    if not is_fixed(weight):
        return computed(node)
    refused = bias_refused(node, mapping, at=_BIAS)
    if refused is not None:
        return refused
    if not mapping.axes <= {2}:
        return Refusal(f"it varies along other axes than the features of {describe(node)}", node)
    directions, rows, size = shape_of_weight(weight)
    scale, shift = along(mapping.scale, 2, size), along(mapping.shift, 2, size)
    taken = take(node, weight, scale.reshape(1, 1, -1), search)
    if isinstance(taken, Refusal):
        return taken
    total = np.zeros((directions, 2 * rows))
    if not mapping.no_shift:
        total = total if bias is None else array_of(bias).copy()
        total[:, :rows] += sum_over(weight, shift.reshape(1, 1, -1), [2])[:, :, 0]
        if not storable(dtype_of_weight(weight), total):
            return overflows(node, dtype_of_weight(weight))

    def build(region: Region, raw: ir.Value) -> None:
        inputs = [raw, taken.build(region)]
        inputs += list(node.inputs[2:])  # type: ignore[arg-type] # absent optional inputs are None
        if not mapping.no_shift:
            if bias is None:
                stem = name_of_weight(weight).removesuffix(".weight")
                new = region.constant(lambda: total, total.shape, dtype_of_weight(weight), name=f"{stem}.bias")
                inputs += [None] * (_BIAS + 1 - len(inputs))  # type: ignore[list-item]
            else:
                new = derive(region, bias, lambda _old: total)
            inputs[_BIAS] = new
        made = region.replace(node, inputs)
        for old, fresh in zip(node.outputs, made.outputs, strict=True):
            if old.uses() or old.is_graph_output():
                region.same(old, fresh)

    extra = taken.cost + (0.0 if mapping.no_shift else copy_cost(bias, node))
    return ForwardPlan(build, (*taken.old, node), (node,), extra)
