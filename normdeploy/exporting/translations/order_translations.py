"""What is found by order: medians, k-th values, places in a sorted sequence, elements under a mask.

With ``x`` of ``n`` elements along an axis, in ascending order ``s[0] <= ... <= s[n - 1]``::

    kthvalue(x, k)     = s[k - 1]                            = the last of TopK(x, k, largest=0)
    median(x)          = s[(n - 1) // 2], NaN where x has one
    nanmedian(x)       = s[(m - 1) // 2], m the number of elements that are no NaN, which come first
    searchsorted(b, v) = the number of b < v (right: b <= v)
    masked_select      = Compress of both laid out in one row

torch's exporter has no form for any of them. Among equal elements the index is the first one's; torch promises none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import ints, number, op

aten = torch.ops.aten


def _length(x: Any, dim: int) -> Any:
    """Return the length along an axis, of one element."""
    return op.Gather(op.Shape(x), ints(dim), axis=0)


def _last_of(x: Any, count: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Return the greatest of the smallest elements along an axis, and where it is. Args: count: how many these are."""
    values, places = op.TopK(x, count, axis=dim, largest=0, sorted=1)
    index = ints(-1) if keepdim else op.Constant(value_int=-1)
    return op.Gather(values, index, axis=dim), op.Gather(places, index, axis=dim)


def kthvalue(self: Any, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """Translate aten.kthvalue."""
    count = ints(k) if isinstance(k, int) else op.Reshape(k, ints(1))
    return _last_of(self, count, dim, keepdim)


def median_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """Translate aten.median.dim."""
    count = op.Div(op.Add(_length(self, dim), ints(1)), ints(2))
    value, place = _last_of(self, count, dim, keepdim)
    if not self.dtype.is_floating_point():
        return value, place
    unknown = op.Cast(op.IsNaN(self), to=self.dtype)
    some = op.Cast(op.ReduceMax(unknown, ints(dim), keepdims=int(keepdim)), to=ir.DataType.BOOL)
    first = op.ArgMax(unknown, axis=dim, keepdims=int(keepdim))
    return op.Where(some, number(math.nan, self), value), op.Where(some, first, place)


def median(self: Any) -> Any:
    """Translate aten.median of all elements."""
    return median_dim(_row(self), 0)[0]


def nanmedian_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """Translate aten.nanmedian.dim."""
    if not self.dtype.is_floating_point():
        return median_dim(self, dim, keepdim)
    unknown = op.IsNaN(self)
    known = op.ReduceSum(op.Cast(op.Not(unknown), to=ir.DataType.INT64), ints(dim), keepdims=1)
    last = op.Where(unknown, number(math.inf, self), self)
    values, places = op.TopK(last, _length(self, dim), axis=dim, largest=0, sorted=1)
    at = op.Div(op.Max(op.Sub(known, ints(1)), ints(0)), ints(2))
    value = op.Where(op.Greater(known, ints(0)), op.GatherElements(values, at, axis=dim), number(math.nan, self))
    place = op.GatherElements(places, at, axis=dim)
    return (value, place) if keepdim else (op.Squeeze(value, ints(dim)), op.Squeeze(place, ints(dim)))


def nanmedian(self: Any) -> Any:
    """Translate aten.nanmedian of all elements."""
    return nanmedian_dim(_row(self), 0)[0]


def searchsorted(
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Translate aten.searchsorted; NaN is behind all others, as it is for torch."""
    bounds = sorted_sequence if sorter is None else op.GatherElements(sorted_sequence, sorter, axis=-1)
    if len(sorted_sequence.shape) > 1:
        bounds = op.Unsqueeze(bounds, ints(-2))
    value = op.Unsqueeze(self, ints(-1))
    behind = op.Greater(bounds, value) if right or side == "right" else op.GreaterOrEqual(bounds, value)
    dtype = ir.DataType.INT32 if out_int32 else ir.DataType.INT64
    return op.ReduceSum(op.Cast(op.Not(behind), to=dtype), ints(-1), keepdims=0)


def masked_select(self: Any, mask: Any) -> Any:
    """Translate aten.masked_select."""
    wide, open_ = op.Expand(self, op.Shape(mask)), op.Expand(mask, op.Shape(self))
    return op.Compress(op.Reshape(wide, ints(-1)), op.Reshape(open_, ints(-1)))


def _row(x: Any) -> Any:
    """Return all elements in one row."""
    row = op.Reshape(x, ints(-1))
    row.dtype, row.shape = x.dtype, ir.Shape([None])
    return row


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.kthvalue.default: kthvalue,
    aten.median.dim: median_dim,
    aten.median.default: median,
    aten.nanmedian.dim: nanmedian_dim,
    aten.nanmedian.default: nanmedian,
    aten.searchsorted.Tensor: searchsorted,
    aten.masked_select.default: masked_select,
}
