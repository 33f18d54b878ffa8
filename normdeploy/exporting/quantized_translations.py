"""Quantizers in ONNX: QuantizeLinear and DequantizeLinear, a Clip of the integers where they have fewer values.

The integers are int8 or uint8, int16 or uint16 from operator set 21 on; ranges that fit none, and zero points that are
no integers, are written in arithmetic: Div, Round, Add, Clip, Sub, Mul. torch's own translations know three ranges and
drop the others' bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from normdeploy.exporting import quantized_trace
from normdeploy.exporting.attention import op
from normdeploy.exporting.delegated import NoTranslationError

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


def _arithmetic(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    rounded = op.Add(op.Round(op.Div(x, scale)), zero)
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


def _given(value: Any, dtype: ir.DataType) -> Any:
    """Return a number, or a tensor of one per channel, as a constant of a type."""
    if isinstance(value, (int, float)):
        return _constant(value, dtype)
    cast = op.Cast(value, to=dtype)
    cast.shape = value.shape
    return cast if value.shape is not None and len(value.shape) == 1 and value.shape[0] != 1 else _scalar(cast)


def _scalar(value: Any) -> Any:
    return (
        value
        if value.shape is not None and len(value.shape) == 0
        else op.Reshape(value, op.Constant(value=ir.tensor([], dtype=ir.DataType.INT64)))
    )


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
        if kind is None or zero.dtype in _FLOATS:
            if axis is not None:
                spread = op.Constant(value_ints=[-1 if at == axis % rank else 1 for at in range(rank)])
                step, zero_point = op.Reshape(step, spread), op.Reshape(zero, spread)
            result = _arithmetic(x, step, op.Cast(zero_point, to=ir.DataType.FLOAT), low, high)
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

    def quantize(input: Any, scale: Any, zero: Any, low: int, high: int, dtype: int, *, axis: int = 1) -> Any:  # noqa: A002 - torch's name
        kind = next((k for k in (*_TYPES, *_WIDE) if k[0] == dtype), None)
        if kind is None:
            raise NoTranslationError(f"integers of type {ir.DataType(dtype).name.lower()} have no QuantizeLinear")
        x = _as_float(input)
        step, zero_point = _given(scale, ir.DataType.FLOAT), _given(zero, kind[0])
        return _integers(x, step, zero_point, kind, low, high, axis)

    def quantize_channels(
        input: Any,  # noqa: A002 - torch's name
        scales: Any,
        zero_points: Any,
        axis: int,
        quant_min: int,
        quant_max: int,
        dtype: int,
    ) -> Any:
        return quantize(input, scales, zero_points, quant_min, quant_max, dtype, axis=axis % len(input.shape))

    found = quantized_trace.operators
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        found.quantized.default: quantized,
        found.quantized_by.default: quantized_by,
        found.restored.default: restored,
    }
    for decomposed, function in (("quantize_per_tensor", quantize), ("quantize_per_channel", quantize_channels)):
        packet = getattr(torch.ops.quantized_decomposed, decomposed, None)
        for name in packet.overloads() if packet is not None else ():
            table[getattr(packet, name)] = function
    return table


def translations(opset: int | None) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of quantizers.

    Args:
        opset: the operator set asked for; None for the exporter's own default.
    """
    return _translations(wide=opset is not None and opset >= _WIDE_OPSET)
