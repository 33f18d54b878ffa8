"""Operators that torch's exporter translates wrongly, translated right.

Each function takes the arguments of its torch operator and writes ONNX operators in their place. What was wrong, with a
way to reproduce it, is in docs/upstream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.exporting.translations import (
    adaptive_pooling,
    attention_translation,
    bag_translation,
    complex_translations,
    delegated,
    experts_translation,
    fourier_translations,
    made_of_numbers,
    nearest_places,
    order_translations,
    pairwise_translations,
    quantized_translations,
    recurrent_translations,
    running_translations,
    scatter_translations,
    short_time_fourier,
    size_translations,
)
from normdeploy.exporting.translations.attention_translation import ints, number, op
from normdeploy.exporting.translations.delegated import NoTranslationError

aten = torch.ops.aten


def _each(value: int | Sequence[int], count: int) -> list[int]:
    """Return one number per axis from what torch takes: one for all, or one each."""
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


def _average_pool(
    axes: int,
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Average over windows, or their sum divided by a number of the user's.

    With a divisor, padding counts as zeros, and so do rows behind it that ceil_mode asks for: e = min(stride - 1,
    kernel - padding - 1) more of them give the same windows as ceil_mode (the last one starts inside), all whole, so
    that each sum is its average times the kernel's size::

        sum(window) / divisor = AveragePool(x, zeros counted) kernel / divisor
    """
    kernel, pads = _each(kernel_size, axes), _each(padding, axes)
    strides = _each(stride, axes) if stride else kernel
    unbatched = len(x.shape) == axes + 1
    if unbatched:
        x = op.Unsqueeze(x, op.Constant(value_ints=[0]))
    after = list(pads)
    if divisor_override is not None and ceil_mode:
        after = [p + min(s - 1, k - p - 1) for k, s, p in zip(kernel, strides, pads, strict=True)]
    y = op.AveragePool(
        x,
        kernel_shape=kernel,
        strides=strides,
        pads=pads + after,
        ceil_mode=int(ceil_mode and divisor_override is None),
        count_include_pad=int(count_include_pad or divisor_override is not None),
    )
    if divisor_override is not None:
        factor = ir.tensor(math.prod(kernel) / divisor_override, dtype=x.dtype)
        y = op.Mul(y, op.Constant(value=factor))
    return op.Squeeze(y, op.Constant(value_ints=[0])) if unbatched else y


def avg_pool2d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Translate aten.avg_pool2d; torch's own translation drops ``divisor_override``."""
    return _average_pool(2, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Translate aten.avg_pool3d; torch's own translation drops ``divisor_override``."""
    return _average_pool(3, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def log_sigmoid(self: Any) -> Any:
    """Translate aten.log_sigmoid; torch's own is log(sigmoid(x)), which is -inf below -104 (float32)."""
    return op.Neg(op.Softplus(op.Neg(self)))


def log(self: Any) -> Any:
    """Translate aten.log; of a sigmoid as log_sigmoid, of a softmax as LogSoftmax.

    The sigmoid of onnxruntime's CPU kernel is 0 from -18 on in float32, its softmax from about -87 on, where eager
    torch's are not: their logarithms would be infinite (docs/upstream/onnxruntime.md).
    """
    node = self.producer()
    if node is not None and node.domain == "" and node.op_type == "Sigmoid":
        return log_sigmoid(node.inputs[0])
    if node is not None and node.domain == "" and node.op_type == "Softmax":
        return op.LogSoftmax(node.inputs[0], axis=node.attributes.get_int("axis", -1))
    return op.Log(self)


def _resize_antialiased(
    x: Any,
    output_size: Any,
    align_corners: bool,
    scales: Sequence[float | None],
    *,
    mode: str,
    cubic_coeff_a: float,
) -> Any:
    """Resize with antialiasing; by the scales where they are given, as torch samples by them.

    Raises:
        NoTranslationError: align_corners, which ONNX's antialiasing does otherwise.
    """
    if align_corners:
        raise NoTranslationError(
            "interpolate(antialias=True, align_corners=True) has no ONNX form: use align_corners=False"
        )
    settings: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": cubic_coeff_a,
        "antialias": 1,
        "exclude_outside": 1,
    }
    given = [scale for scale in scales if scale is not None]
    if len(given) == len(scales):
        return op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, *given]), None, **settings)
    sizes = op.Concat(op.Shape(x, end=2), op.Cast(output_size, to=ir.DataType.INT64), axis=0)
    return op.Resize(x, None, None, sizes, **settings)


def bilinear_antialiased(
    self: Any, output_size: Any, align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Any:
    """Translate aten._upsample_bilinear2d_aa; torch's own ignores the scales."""
    return _resize_antialiased(
        self, output_size, align_corners, (scales_h, scales_w), mode="linear", cubic_coeff_a=-0.5
    )


def bicubic_antialiased(
    self: Any, output_size: Any, align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Any:
    """Translate aten._upsample_bicubic2d_aa; torch's own ignores the scales."""
    return _resize_antialiased(self, output_size, align_corners, (scales_h, scales_w), mode="cubic", cubic_coeff_a=-0.5)


def rrelu(self: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
    """Translate aten.rrelu: in evaluation the slope is the middle of those that training draws from."""
    del generator
    if training:
        raise NoTranslationError("rrelu(training=True) draws its slopes at random: use training=self.training")
    return op.LeakyRelu(self, alpha=(lower + upper) / 2)


def cdist(x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
    """Translate aten._cdist_forward, for which torch's exporter has no form: the p-norm of differences of rows.

    What torch computes through products of matrices where there are many rows is written by differences, as where
    there are few: the nearer to the real number of the two.
    """
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


def translations(opset: int | None) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return what ``torch.onnx.export`` takes as ``custom_translation_table``.

    Args:
        opset: the operator set asked for; None for the exporter's own default.
    """
    return {
        aten.avg_pool2d.default: avg_pool2d,
        aten.avg_pool3d.default: avg_pool3d,
        aten.log.default: log,
        aten.log_sigmoid.default: log_sigmoid,
        aten.rrelu.default: rrelu,
        aten._upsample_bilinear2d_aa.default: bilinear_antialiased,
        aten._upsample_bicubic2d_aa.default: bicubic_antialiased,
        aten._embedding_bag.default: bag_translation.embedding_bag,
        aten._embedding_bag_forward_only.default: bag_translation.embedding_bag,
        aten.embedding_bag.padding_idx: bag_translation.embedding_bag,
        aten.zeros.default: complex_translations.zeros,
        aten._cdist_forward.default: cdist,
        aten.lstm.input: delegated.lstm,
        aten.scatter.src: scatter_translations.scatter_src,
        aten.scatter.reduce: scatter_translations.scatter_with,
        aten.scatter.value_reduce: scatter_translations.scatter_value_with,
        aten.scatter_add.default: scatter_translations.scatter_add,
        aten.scatter_reduce.two: scatter_translations.scatter_reduce,
        aten.index_reduce.default: scatter_translations.index_reduce,
        aten.index_put.default: scatter_translations.index_put,
        aten._unsafe_index_put.default: scatter_translations.index_put,
        aten.index.Tensor: scatter_translations.index,
        aten._unsafe_index.Tensor: scatter_translations.index,
        aten.scaled_dot_product_attention.default: attention_translation.translation(opset),
        **adaptive_pooling.TRANSLATIONS,
        **fourier_translations.REAL,
        **made_of_numbers.TRANSLATIONS,
        **nearest_places.TRANSLATIONS,
        **order_translations.TRANSLATIONS,
        **pairwise_translations.TRANSLATIONS,
        **recurrent_translations.TRANSLATIONS,
        **running_translations.TRANSLATIONS,
        **short_time_fourier.TRANSLATIONS,
        **size_translations.TRANSLATIONS,
        **experts_translation.translations(),
        **quantized_translations.translations(opset),
    }
