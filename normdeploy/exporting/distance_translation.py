"""torch.cdist: d[i, j] = (sum over k of |x1[i, k] - x2[j, k]|^p)^(1/p), for which torch's exporter has no form.

What torch computes through products of matrices where there are many rows is written by differences, as where there
are few: the nearer to the real number of the two.
"""

from __future__ import annotations

import math
from typing import Any

from normdeploy.exporting.attention_translation import ints, number, op


def cdist(x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
    """Translate aten._cdist_forward."""
    del compute_mode  # how torch computes it
    apart = op.Sub(op.Unsqueeze(x1, ints(-2)), op.Unsqueeze(x2, ints(-3)))
    if p == 1:
        return op.ReduceL1(apart, ints(-1), keepdims=0)
    if p == 2:
        return op.ReduceL2(apart, ints(-1), keepdims=0)
    if math.isinf(p):
        return op.ReduceMax(op.Abs(apart), ints(-1), keepdims=0)
    if p == 0:
        return op.ReduceSum(op.Cast(op.Not(op.Equal(apart, number(0.0, x1))), to=x1.dtype), ints(-1), keepdims=0)
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(apart), number(p, x1)), ints(-1), keepdims=0), number(1 / p, x1))
