"""Complex numbers, which ONNX has no operators for: pairs of real ones, along an axis behind all others.

torch's exporter writes a complex tensor of shape ``[...]`` as a real one of ``[..., 2]`` and translates arithmetic so,
but few of the operators that only pick or place elements, without which no rotary position and no Fourier layer can be
exported. Here these are torch's own translations for real tensors, with axes counted from the front, where the pair's
axis changes nothing; and functions::

    exp(a + ib) = exp(a) (cos b + i sin b)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import core, linalg
from torch.onnx._internal.exporter._registration import ONNXRegistry

from normdeploy.exporting.translations import fourier_translations
from normdeploy.exporting.translations.attention_translation import ints, number, op
from normdeploy.exporting.translations.complex_products import PAIR, einsum, joined, linear, matrix_product, part
from normdeploy.exporting.translations.delegated import NoTranslationError
from normdeploy.exporting.translations.made_of_numbers import wherever_it_lies
from normdeploy.graph.operators.call import axis_of

aten = torch.ops.aten

_PARTS = {ir.DataType.COMPLEX64: ir.DataType.FLOAT, ir.DataType.COMPLEX128: ir.DataType.DOUBLE}
"""Type of these numbers."""


def _axis(dim: int, like: Any, more: int = 0) -> int:
    """Return an axis of a complex tensor counted from the front, ``more`` of them besides its own."""
    return axis_of(dim, len(like.shape) - 1 + more)


def unsqueeze(self: Any, dim: int) -> Any:
    """Translate aten.unsqueeze of complex numbers."""
    return core.aten_unsqueeze(self, _axis(dim, self, 1))


def select(self: Any, dim: int, index: Any) -> Any:
    """Translate aten.select of complex numbers."""
    return core.aten_select(self, _axis(dim, self), index)


def expand(self: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    """Translate aten.expand of complex numbers."""
    return core.aten_expand(self, [*size, PAIR], implicit)


def repeat(self: Any, repeats: Sequence[Any]) -> Any:
    """Translate aten.repeat of complex numbers; axes of size 1 are put in front where there are more repeats."""
    added = len(repeats) - (len(self.shape) - 1)
    front = op.Unsqueeze(self, ints(*range(added))) if added else self
    return core.aten_repeat(front, [*repeats, 1])


def split(self: Any, split_size: Any, dim: int = 0) -> Any:
    """Translate aten.split of complex numbers."""
    return core.aten_split(self, split_size, _axis(dim, self))


def split_with_sizes(self: Any, split_sizes: Any, dim: int = 0) -> Any:
    """Translate aten.split_with_sizes of complex numbers."""
    return core.aten_split_with_sizes(self, split_sizes, _axis(dim, self))


def unbind(self: Any, dim: int = 0) -> Any:
    """Translate aten.unbind of complex numbers."""
    return core.aten_unbind(self, _axis(dim, self))


def index_select(self: Any, dim: int, index: Any) -> Any:
    """Translate aten.index_select of complex numbers."""
    return core.aten_index_select(self, _axis(dim, self), index)


def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Translate aten.gather of complex numbers: both numbers of a pair come from one place."""
    pairs = op.Expand(op.Unsqueeze(index, ints(-1)), op.Concat(op.Shape(index), ints(PAIR), axis=0))
    pairs.shape, pairs.dtype = ir.Shape([*index.shape, PAIR]), index.dtype  # torch's translation asks for them
    return core.aten_gather(self, _axis(dim, self), pairs, sparse_grad)


def slice_scatter(self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Translate aten.slice_scatter of complex numbers."""
    return core.aten_slice_scatter(self, src, _axis(dim, self), start, end, step)


def select_scatter(self: Any, src: Any, dim: int, index: Any) -> Any:
    """Translate aten.select_scatter of complex numbers."""
    return core.aten_select_scatter(self, src, _axis(dim, self), index)


def cumsum(self: Any, dim: int, dtype: int = -1) -> Any:
    """Translate aten.cumsum of complex numbers."""
    del dtype  # complex as well
    return op.CumSum(self, op.Constant(value_int=_axis(dim, self)))


def pad(self: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """Translate aten.pad of complex numbers."""
    return _padded(self, pad, mode, value)


def _padded(x: Any, widths: Sequence[Any], mode: str, value: float | None) -> Any:
    """Pad with zeros; the last axis comes first in ``widths``.

    Raises:
        NoTranslationError: it pads with something else.
    """
    if mode != "constant" or value:
        raise NoTranslationError(
            f"a complex tensor padded with {value or mode}; expected zeros: pad its real and imaginary part each"
        )
    return core.aten_constant_pad_nd(x, [0, 0, *widths], 0.0)


def constant_pad(self: Any, pad: Sequence[Any], value: float = 0.0) -> Any:
    """Translate aten.constant_pad_nd of complex numbers."""
    return _padded(self, pad, "constant", value)


def where(condition: Any, self: Any, other: Any) -> Any:
    """Translate aten.where of complex numbers."""
    return op.Where(op.Unsqueeze(condition, ints(-1)), self, other)


def zeros_like(
    self: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    """Translate aten.zeros_like of complex numbers."""
    del dtype, layout, device, pin_memory, memory_format
    return op.Expand(op.Constant(value=ir.tensor([0.0], dtype=self.dtype)), op.Shape(self))


def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    """Translate aten.masked_fill of complex numbers with a number."""
    return op.Where(op.Unsqueeze(mask, ints(-1)), _number(value, self), self)


def scaled(self: Any, other: Any) -> Any:
    """Translate aten.mul of complex numbers with one number."""
    return core.aten_mul_complex(self, _number(other, self))


def power(self: Any, exponent: Any) -> Any:
    """Translate aten.pow of complex numbers to 2, 3 or 4.

    Raises:
        NoTranslationError: another exponent.
    """
    if exponent not in (2, 3, 4):
        raise NoTranslationError(f"a complex tensor to the power of {exponent}; expected 2, 3 or 4: use exp and log")
    result = self
    for _ in range(int(exponent) - 1):
        result = core.aten_mul_complex(result, self)
    return result


def exp(self: Any) -> Any:
    """Translate aten.exp of complex numbers."""
    size, angle = op.Exp(part(self, 0)), part(self, 1)
    return joined(op.Mul(size, op.Cos(angle)), op.Mul(size, op.Sin(angle)))


def tanh(self: Any) -> Any:
    """Translate aten.tanh of complex numbers.

    tanh(x + iy) = (t + i sin y cos y (1 - t^2)) / (cos^2 y + t^2 sin^2 y),  t = tanh x, of which nothing overflows.
    """
    t, sin, cos = op.Tanh(part(self, 0)), op.Sin(part(self, 1)), op.Cos(part(self, 1))
    flat = op.Sub(number(1.0, t), op.Mul(t, t))
    below = op.Add(op.Mul(cos, cos), op.Mul(op.Mul(t, t), op.Mul(sin, sin)))
    return joined(op.Div(t, below), op.Div(op.Mul(op.Mul(sin, cos), flat), below))


def zeros(
    size: Sequence[Any], dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    """Translate aten.zeros, complex ones among them: pairs of zeros."""
    del layout, device, pin_memory
    asked = ir.DataType.FLOAT if dtype is None or dtype == -1 else ir.DataType(dtype)
    if asked not in _PARTS:
        return core.aten_zeros(size, asked.value)
    return core.aten_zeros([*size, PAIR], _PARTS[asked].value)


@wherever_it_lies
def new_zeros(self: Any, size: Sequence[Any], dtype: Any = None) -> Any:
    """Translate aten.new_zeros of complex numbers; of a real type where that is asked."""
    if dtype is None or dtype == -1:
        return core.aten_zeros([*size, PAIR], self.dtype.value)
    return zeros(size, dtype)


def vector_norm(self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = -1) -> Any:  # noqa: A002 - torch's name
    """Translate aten.linalg_vector_norm of complex numbers: that of their sizes."""
    axes = None if dim is None else [_axis(axis, self) for axis in dim]
    return linalg.aten_linalg_vector_norm(core.aten_abs_complex(self), ord, axes, keepdim, dtype)


def same(self: Any) -> Any:
    """Translate aten.alias and aten.detach of complex numbers."""
    return op.Identity(self)


def _number(value: Any, like: Any) -> Any:
    """Return a number as a pair."""
    if isinstance(value, (bool, int, float, complex)):
        return op.Constant(value=ir.tensor([complex(value).real, complex(value).imag], dtype=like.dtype))
    return value


COMPLEX: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.unsqueeze.default: unsqueeze,
    aten.select.int: select,
    aten.expand.default: expand,
    aten.repeat.default: repeat,
    aten.split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unbind.int: unbind,
    aten.index.Tensor: core.aten_index,
    aten.embedding.default: core.aten_embedding,
    aten.copy.default: core.aten_copy,
    aten.index_select.default: index_select,
    aten.gather.default: gather,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.index_put.default: core.aten_index_put,
    aten.cumsum.default: cumsum,
    aten.pad.default: pad,
    aten.constant_pad_nd.default: constant_pad,
    aten.where.self: where,
    aten.zeros_like.default: zeros_like,
    aten.masked_fill.Scalar: masked_fill,
    aten.mul.Scalar: scaled,
    aten.pow.Tensor_Scalar: power,
    aten.exp.default: exp,
    aten.tanh.default: tanh,
    aten.einsum.default: einsum,
    aten.linear.default: linear,
    aten.mm.default: matrix_product,
    aten.bmm.default: matrix_product,
    aten.new_zeros.default: new_zeros,
    aten.linalg_vector_norm.default: vector_norm,
    aten.alias.default: same,
    aten.detach.default: same,
    **fourier_translations.COMPLEX,
}
"""What each operator is for complex numbers."""


@contextmanager
def complex_numbers_translated() -> Iterator[None]:
    """Let torch's exporter take these for complex operands: what a user gives it counts for real ones alone, and is one
    translation for each operator.
    """
    registry: Any = ONNXRegistry
    register = registry.register_op
    known = set(COMPLEX.values())

    @wraps(register)
    def registered(self: Any, target: Any, function: Any, is_complex: bool = False) -> None:
        register(self, target, function, is_complex or function in known)
        if function not in known and not is_complex and target in COMPLEX:
            register(self, target, COMPLEX[target], True)

    registry.register_op = registered
    try:
        yield
    finally:
        registry.register_op = register
