"""nn.EmbeddingBag: rows of a table, gathered and reduced per bag.

torch's own translation loops over the bags in a form that onnxruntime refuses to load (or dies of). A bag is a row of a
matrix with a one for each of its indices, and its sum is a product with that matrix::

    bag[i]  = |{b: offsets[b] <= i}| - 1
    M[b, i] = weight of i if bag[i] = b and index[i] is not the padding's, else 0
    sum = M E,  mean = M E / max(number of indices, 1),  max = max over i in b of E[i], 0 for none

with E[i] = table[index[i]].
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from normdeploy.exporting.translations.attention_translation import ints, number, op

SUM, MEAN, MAX = range(3)


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> Any:
    """Translate aten._embedding_bag; of its four results only the first is for users, the others are zeros here."""
    del scale_grad_by_freq, sparse  # of training
    indices, offsets = op.Cast(indices, to=ir.DataType.INT64), op.Cast(offsets, to=ir.DataType.INT64)
    if include_last_offset:
        offsets = op.Slice(offsets, ints(0), ints(-1), ints(0))
    count = op.Shape(indices)
    places = op.Range(op.Constant(value_int=0), op.Squeeze(count), op.Constant(value_int=1))
    begun = op.LessOrEqual(op.Unsqueeze(offsets, ints(1)), op.Unsqueeze(places, ints(0)))  # [bags, indices]
    bag = op.Sub(op.ReduceSum(op.Cast(begun, to=ir.DataType.INT64), ints(0), keepdims=0), op.Constant(value_int=1))
    numbers = op.Range(op.Constant(value_int=0), op.Squeeze(op.Shape(offsets)), op.Constant(value_int=1))
    inside = op.Equal(op.Unsqueeze(numbers, ints(1)), op.Unsqueeze(bag, ints(0)))
    if padding_idx is not None and padding_idx >= 0:
        inside = op.And(inside, op.Unsqueeze(op.Not(op.Equal(indices, ints(padding_idx))), ints(0)))
    rows = op.Gather(weight, indices, axis=0)
    if mode == MAX:
        least = number(-math.inf, weight)
        masked = op.Where(op.Unsqueeze(inside, ints(2)), op.Unsqueeze(rows, ints(0)), least)
        some = op.ReduceMax(op.Cast(inside, to=weight.dtype), ints(1), keepdims=1)
        zero = number(0.0, weight)
        result = op.Where(op.Greater(some, zero), op.ReduceMax(masked, ints(1), keepdims=0), zero)
    else:
        members = op.Cast(inside, to=weight.dtype)
        scaled = members if per_sample_weights is None else op.Mul(members, op.Unsqueeze(per_sample_weights, ints(0)))
        result = op.MatMul(scaled, rows)
        if mode == MEAN:
            one = number(1.0, weight)
            result = op.Div(result, op.Max(op.ReduceSum(members, ints(1), keepdims=1), one))
    return result, ints(0), ints(0), ints(0)
