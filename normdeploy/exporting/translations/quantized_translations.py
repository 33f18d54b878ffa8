"""Quantizers in ONNX: QuantizeLinear and DequantizeLinear, a Clip of the integers where they have fewer values.

The integers are int8 or uint8, int16 or uint16 from operator set 21 on; ranges that fit none, and zero points that are
no integers, are written in arithmetic: Div, Round, Add, Clip, Sub, Mul. torch's own translations know three ranges and
drop the others' bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import onnx_ir as ir
import onnxscript

from normdeploy.exporting.quantized import quantized_trace
from normdeploy.exporting.translations.attention_translation import op

op21: Any = onnxscript.opset21
_TYPES = ((ir.DataType.UINT8, 0, 255), (ir.DataType.INT8, -128, 127))
_WIDE = ((ir.DataType.UINT16, 0, 65535), (ir.DataType.INT16, -32768, 32767))
_WIDE_OPSET = 21
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _constant(value: float, dtype: ir.DataType) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=dtype))


def _type_for(low: int, high: int, *, wide: bool) -> tuple[ir.DataType, int, int] | None:
    for dtype, least, most in (*_TYPES, *(_WIDE if wide else ())):
        if least <= low and high <= most:
            return dtype, least, most
    return None


def _arithmetic(x: Any, scale: Any, zero: Any, low: int, high: int, *, whole: bool = True) -> Any:
    steps = op.Div(x, scale)
    rounded = op.Add(op.Round(steps), zero) if whole else op.Round(op.Add(steps, zero))
    cut = op.Clip(rounded, _constant(low, x.dtype), _constant(high, x.dtype))
    return op.Mul(op.Sub(cut, zero), scale)


def _as_float(x: Any) -> Any:
    if x.dtype == ir.DataType.FLOAT:
        return x
    shape = x.shape
    x = op.Cast(x, to=ir.DataType.FLOAT)
    x.dtype, x.shape = ir.DataType.FLOAT, shape
    return x


def _pair(x: Any, scale: Any, zero: Any, kind: tuple[ir.DataType, int, int], low: int, high: int, axis: int) -> Any:
    operators = op21 if kind[0] in (ir.DataType.UINT16, ir.DataType.INT16) else op
    return operators.DequantizeLinear(_integers(x, scale, zero, kind, low, high, axis), scale, zero, axis=axis)


def _integers(x: Any, scale: Any, zero: Any, kind: tuple[ir.DataType, int, int], low: int, high: int, axis: int) -> Any:
    dtype, least, most = kind
    operators = op21 if dtype in (ir.DataType.UINT16, ir.DataType.INT16) else op
    integers = operators.QuantizeLinear(x, scale, zero, axis=axis)
    if (low, high) == (least, most):
        return integers
    return operators.Clip(integers, _constant(low, dtype), _constant(high, dtype))


def _scalar(value: Any) -> Any:
    return (
        value
        if value.shape is not None and len(value.shape) == 0
        else op.Reshape(value, op.Constant(value=ir.tensor([], dtype=ir.DataType.INT64)))
    )


@cache
def _translations(*, wide: bool) -> dict[Callable[..., Any], Callable[..., Any]]:
    def quantized(x: Any, scale: float, zero: int, low: int, high: int) -> Any:
        kind, back = _type_for(low, high, wide=wide), x.dtype
        x = _as_float(x)
        step = _constant(scale, ir.DataType.FLOAT)
        if kind is None or not kind[1] <= zero <= kind[2]:
            result = _arithmetic(x, step, _constant(zero, ir.DataType.FLOAT), low, high)
        else:
            result = _pair(x, step, _constant(zero, kind[0]), kind, low, high, 1)
        return result if back == ir.DataType.FLOAT else op.Cast(result, to=back)

    def quantized_by(x: Any, scale: Any, zero: Any, axis: int | None, low: int, high: int) -> Any:
        kind, back = _type_for(low, high, wide=wide), x.dtype
        x, step = _as_float(x), _as_float(scale)
        rank = len(x.shape)
        if axis is None:
            step, zero_point = _scalar(step), zero
        else:
            zero_point = zero
        whole = zero.dtype not in _FLOATS
        if kind is None or not whole:
            if axis is not None:
                spread = op.Constant(value_ints=[-1 if at == axis % rank else 1 for at in range(rank)])
                step, zero_point = op.Reshape(step, spread), op.Reshape(zero, spread)
            result = _arithmetic(x, step, op.Cast(zero_point, to=ir.DataType.FLOAT), low, high, whole=whole)
        else:
            zero_point = op.Cast(zero, to=kind[0])
            zero_point.shape = zero.shape
            zero_point = _scalar(zero_point) if axis is None else zero_point
            result = _pair(x, step, zero_point, kind, low, high, 1 if axis is None else axis % rank)
        return result if back == ir.DataType.FLOAT else op.Cast(result, to=back)

    def restored(integers: Any, scale: Any, zero: Any, axis: int | None) -> Any:
        zero_point = op.Cast(zero, to=integers.dtype)
        zero_point.shape = zero.shape
        step = _as_float(scale)
        if axis is None:
            return op.DequantizeLinear(integers, _scalar(step), _scalar(zero_point))
        return op.DequantizeLinear(integers, step, zero_point, axis=axis % len(integers.shape))

    found = quantized_trace.operators
    return {
        found.quantized.default: quantized,
        found.quantized_by.default: quantized_by,
        found.restored.default: restored,
    }


def translations(opset: int | None) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of quantizers.

    Args:
        opset: the operator set asked for; None for the exporter's own default.
    """
    return dict(_translations(wide=opset is not None and opset >= _WIDE_OPSET))
