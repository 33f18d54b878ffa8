"""What some operators return is known from what they read: a tensor of the operand's shape.

Where a size is dynamic, torch runs Python code of its own for a norm or an activation to know the shape of the result,
a dozen operators on stand-ins for tensors, each with algebra of sizes: a BatchNorm takes ten times a convolution's
time. Of an operand in one piece, whose channels fit, the result lies in one piece too. In any other case torch's code
runs, and with it come its messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

_POINTWISE = ("relu", "gelu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "mish", "softplus", "clamp")
"""Operators of one tensor, whose other operands are numbers; of floats they make floats of the same type."""

_WIDE = (torch.float32, torch.float64)
"""Types in which torch computes statistics and products of the same type."""


@contextmanager
def known_results() -> Iterator[None]:
    """Let stand-ins for results be made in this block without running torch's code, where they are known."""
    from torch._decomp import decomposition_table, meta_table
    from torch._subclasses.fake_impls import get_fast_op_impls
    from torch._subclasses.fake_tensor import FakeTensorMode

    aten, table = torch.ops.aten, get_fast_op_impls()
    written = (meta_table, FakeTensorMode._cpp_meta_supports_symint, table)  # asked before the code in Python is
    known: dict[Any, Callable[..., Any]] = {getattr(aten, name).default: _pointwise for name in _POINTWISE}
    known[aten._native_batch_norm_legit_no_training.default] = _batch_norm
    known[aten.native_layer_norm.default] = _layer_norm
    known[aten.native_group_norm.default] = _group_norm
    known[aten.addmm.default], known[aten.mean.dim] = _linear, _mean
    added = {
        operator: partial(_known_or_run, result, decomposition_table[operator])
        for operator, result in known.items()
        if operator in decomposition_table and not any(operator in others for others in written)
    }
    table.update(added)
    try:
        yield
    finally:
        for operator in added:
            del table[operator]


def _known_or_run(result: Callable[..., Any], code: Callable[..., Any], mode: Any, *args: Any, **named: Any) -> Any:
    found = None if named else result(mode, *args)
    if found is not None:
        return found
    with mode:
        return code(*args, **named)


def _pointwise(mode: Any, x: Tensor, *numbers: Any) -> Tensor | None:
    if not _in_one_piece(x) or not all(number is None or type(number) in (int, float, bool) for number in numbers):
        return None
    return _made(mode, x, x.shape)


def _batch_norm(
    mode: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    *_: float,
) -> tuple[Tensor, ...] | None:
    if not _in_one_piece(x) or x.dim() < 2 or not _fit(x, x.shape[1:2], (weight, bias, mean, variance)):
        return None
    return _made(mode, x, x.shape), _made(mode, x, (0,)), _made(mode, x, (0,))


def _layer_norm(
    mode: Any, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, _: float
) -> tuple[Tensor, ...] | None:
    first = x.dim() - len(shape)
    if not _in_one_piece(x) or first < 0 or not shape or x.dtype not in _WIDE:
        return None
    if not _fit(x, x.shape[first:], (weight, bias)) or list(shape) != list(x.shape[first:]):
        return None
    rows = (*x.shape[:first], *(1 for _ in shape))
    return _made(mode, x, x.shape), _made(mode, x, rows), _made(mode, x, rows)


def _group_norm(
    mode: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    channels: Any,
    places: Any,
    groups: int,
    _: float,
) -> tuple[Tensor, ...] | None:
    if not _in_one_piece(x) or x.dim() < 2 or x.dtype not in _WIDE or not _fit(x, (channels,), (weight, bias)):
        return None
    told = [n, channels, math.prod(x.shape[2:])]
    if not _same((*x.shape[:2], places), told) or groups < 1 or channels % groups:
        return None
    return _made(mode, x, x.shape), _made(mode, x, (n, groups)), _made(mode, x, (n, groups))


def _linear(mode: Any, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    if x.dim() != 2 or weight.dim() != 2 or x.dtype not in _WIDE or not _in_one_piece(bias):
        return None
    if not _fit(x, x.shape[1:], ()) or not _fit(x, (*x.shape[1:], *weight.shape[1:]), (weight,)):
        return None
    return _made(mode, x, (x.shape[0], weight.shape[1])) if _fit(x, weight.shape[1:], (bias,)) else None


def _mean(mode: Any, x: Tensor, axes: Sequence[int] | None, keep: bool = False) -> Tensor | None:
    rank = x.dim()
    if not _in_one_piece(x) or x.dtype not in _WIDE or not axes or not all(-rank <= axis < rank for axis in axes):
        return None
    over = {axis % rank for axis in axes}
    if len(over) < len(axes):
        return None
    kept = [1 if axis in over else size for axis, size in enumerate(x.shape) if keep or axis not in over]
    return _made(mode, x, kept)


def _in_one_piece(x: Tensor) -> bool:
    """Tell whether floats lie in order, without a question of sizes that the trace would have to answer for all."""
    from torch._prims_common import is_contiguous_for_memory_format_or_false

    usual = x.is_floating_point() and x.layout == torch.strided and x.device.type == "cpu"
    return usual and is_contiguous_for_memory_format_or_false(x, memory_format=torch.contiguous_format)


def _fit(x: Tensor, shape: Sequence[Any], operands: Sequence[Tensor | None]) -> bool:
    """Tell whether the sizes are numbers, and operands are of just these and of x's type."""
    if not all(type(size) is int for size in shape):
        return False
    given = [operand for operand in operands if operand is not None]
    return all(t.dtype == x.dtype and t.device == x.device and _sizes(t) == list(shape) for t in given)


def _same(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tell whether sizes are the same numbers or the same expressions, which asks nothing of the trace."""
    pairs = zip(sizes, others, strict=True)
    return all(type(a) is type(b) and (a == b if type(a) is int else a.node.expr == b.node.expr) for a, b in pairs)


def _sizes(x: Tensor) -> list[int]:
    """Return the sizes of a tensor; of one with dynamic sizes, none that are equal to any."""
    return [size if type(size) is int else -1 for size in x.shape]


def _made(mode: Any, x: Tensor, shape: Sequence[Any]) -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensor

    empty = torch.empty(tuple(shape), dtype=x.dtype, device="meta", memory_format=torch.contiguous_format)
    return FakeTensor(mode, empty, device=x.device)
