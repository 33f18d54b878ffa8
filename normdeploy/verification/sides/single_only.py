"""What torch computes in single and lower precision only, in the precision that it is given.

torch._grouped_mm (torch.nn.functional.grouped_mm) multiplies groups of rows with a matrix each, and takes no float64.
The experts of transformers' mixtures are computed by it: without this such a model has no reference in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def grouped_mm(
    a: Tensor,
    b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return products of groups: what the ends ``offs`` divide is the axis that a matrix of two axes has for it.

    ====================  ====================  ================================
    a                     b                     result
    ====================  ====================  ================================
    ``[groups, m, k]``    ``[groups, k, n]``    ``a[g] @ b[g]``, without ``offs``
    ``[rows, k]``         ``[groups, k, n]``    ``[rows, n]``: rows of g times ``b[g]``
    ``[groups, m, k]``    ``[k, columns]``      ``[m, columns]``: ``a[g]`` times columns of g
    ``[m, length]``       ``[length, n]``       ``[groups, m, n]``: sums over g's stretch
    ====================  ====================  ================================

    What lies behind the last end is undefined in torch, and 0 here.
    """
    del out_dtype  # how a single precision sum is kept
    if offs is None:
        y = torch.bmm(a, b)
        return y if bias is None else y + bias
    ends = offs.tolist()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    if a.dim() == b.dim() == 2:
        y = torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in spans])
    elif a.dim() == 2:
        y = a.new_zeros(a.shape[0], b.shape[2])
        for number, (begin, end) in enumerate(spans):
            y[begin:end] = a[begin:end] @ b[number]
    else:
        y = a.new_zeros(a.shape[1], b.shape[1])
        for number, (begin, end) in enumerate(spans):
            y[:, begin:end] = a[number] @ b[:, begin:end]
    return y if bias is None else y + bias


IN_FLOAT64: dict[Any, Callable[..., Tensor]] = {torch._grouped_mm: grouped_mm}
"""What stands in for a function whose arguments were promoted."""
