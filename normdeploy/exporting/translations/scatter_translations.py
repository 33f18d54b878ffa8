"""Writing into places and reading there: torch's scatter, index_reduce, index_put and indexing.

ONNX reduces what stands in a place with its updates::

    torch, include_self:  y[p] = reduce(x[p], u_1, .., u_n)             = ScatterElements(x, places, u, reduction)
    without:              y[p] = reduce(u_1, .., u_n) where n > 0       = the same of x with the neutral number there
    mean:                 y[p] = sum / n, of x[p], too, with include_self

torch's own translation writes a mean as the last update, begins a maximum at the most negative finite number, and has
none for a ``reduce`` of scatter nor for index_reduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core

from normdeploy.exporting.translations.attention_translation import ints, op
from normdeploy.exporting.translations.delegated import NoTranslationError

_ONNX = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _of_index(src: Any, index: Any) -> Any:
    """Return the part of a source that an index reads: torch lets it be larger, ScatterElements does not."""
    known = index.shape is not None and src.shape is not None
    if known and all(isinstance(a, int) and a == b for a, b in zip(index.shape, src.shape, strict=True)):
        return src
    ends = op.Shape(index)
    part = op.Slice(src, op.Mul(ends, op.Constant(value_ints=[0])), ends)
    part.shape, part.dtype = index.shape, src.dtype  # torch's translations ask for them
    return part


def scatter_src(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Translate aten.scatter.src."""
    return core.aten_scatter_src(self, dim, index, _of_index(src, index))


def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Translate aten.scatter_add."""
    return core.aten_scatter_add(self, dim, index, _of_index(src, index))


def index(self: Any, indices: Sequence[Any]) -> Any:
    """Translate aten.index, by integers of any type: GatherND takes those of 64 bits alone.

    Indices of one axis are a Gather; torch turns that axis to the front, reads by GatherND, and turns it back.
    """
    given = [(axis, one) for axis, one in enumerate(indices) if one is not None]
    if len(given) == 1 and given[0][1].dtype != ir.DataType.BOOL:
        (axis, places), *_ = given
        return op.Gather(self, _wide(places), axis=axis)
    return core.aten_index(self, [_wide(one) for one in indices])


def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Translate aten.index_put, by integers of any type: ScatterND takes those of 64 bits alone."""
    return core.aten_index_put(self, [_wide(index) for index in indices], values, accumulate)


def _wide(index: Any) -> Any:
    if index is None or index.dtype in (ir.DataType.INT64, ir.DataType.BOOL):
        return index
    wide = op.Cast(index, to=ir.DataType.INT64)
    wide.dtype, wide.shape = ir.DataType.INT64, index.shape  # torch's translation asks for them
    return wide


def scatter_with(self: Any, dim: int, index: Any, src: Any, reduce: str) -> Any:
    """Translate aten.scatter.reduce."""
    return scatter_reduce(self, dim, index, src, reduce)


def scatter_value_with(self: Any, dim: int, index: Any, value: Any, reduce: str) -> Any:
    """Translate aten.scatter.value_reduce."""
    updates = op.Expand(op.Cast(value, to=self.dtype), op.Shape(index))
    updates.dtype, updates.shape = self.dtype, index.shape
    return scatter_reduce(self, dim, index, updates, reduce)


def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    """Translate aten.index_reduce: each slice of the source goes to one slice."""
    if not source.shape:
        return scatter_reduce(self, dim, index, source, reduce, include_self)
    laid_out = [1] * len(source.shape)
    laid_out[dim] = -1
    places = op.Expand(op.Reshape(index, ints(*laid_out)), op.Shape(source))
    places.shape = source.shape
    return scatter_reduce(self, dim, places, source, reduce, include_self)


def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """Translate aten.scatter_reduce.two.

    Raises:
        NoTranslationError: a mean of integers.
    """
    if not self.shape:
        whole, places, new = (op.Reshape(one, ints(-1)) for one in (self, index, src))
        for one, given in ((whole, self), (new, src)):
            one.dtype, one.shape = given.dtype, ir.Shape([1])
        places.shape = ir.Shape([1])
        return op.Squeeze(scatter_reduce(whole, 0, places, new, reduce, include_self))
    if reduce == "mean" and not self.dtype.is_floating_point():
        raise NoTranslationError("scatter_reduce(reduce='mean') of integers has no ONNX form: use floats")
    src, how = _of_index(src, index), _ONNX[reduce]

    def scattered(data: Any, updates: Any, reduction: str) -> Any:
        return op.ScatterElements(data, index, updates, axis=dim, reduction=reduction)

    start = self if include_self else scattered(self, _filled(src, _neutral(how, self.dtype), self.dtype), "none")
    result = scattered(start, src, how)
    if reduce != "mean":
        return result
    ones = _filled(src, 1, self.dtype)
    count = _filled(self, 1, self.dtype)
    if not include_self:
        count = scattered(count, _filled(src, 0, self.dtype), "none")
    return op.Div(result, scattered(count, ones, "add"))


def _filled(like: Any, number: float, dtype: ir.DataType) -> Any:
    return op.ConstantOfShape(op.Shape(like), value=ir.tensor(np.array([number], dtype.numpy()), dtype=dtype))


def _neutral(how: str, dtype: ir.DataType) -> float:
    """Return the number that changes nothing in a reduction."""
    if how in ("add", "mul"):
        return float(how == "mul")
    least = how == "max"
    if dtype.is_floating_point():
        return -math.inf if least else math.inf
    if dtype == ir.DataType.BOOL:
        return not least
    limits = np.iinfo(dtype.numpy())
    return int(limits.min if least else limits.max)
