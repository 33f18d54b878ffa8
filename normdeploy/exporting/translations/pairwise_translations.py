"""Functions of two numbers that torch's exporter has no form for, or one that overflows where torch does not.

    logaddexp:  log(e^a + e^b) = max(a, b) + log(1 + e^-|a - b|)
    hypot:      sqrt(a^2 + b^2) = m sqrt(1 + (n / m)^2),   m and n the larger and the smaller of |a|, |b|

torch's own form of the first is the left-hand side: infinite from 89 on in float32, and minus infinity below -104.
Signs are those of zeros, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from normdeploy.exporting.translations.attention_translation import number, op

aten, prims = torch.ops.aten, torch.ops.prims


def _log_of_sum(a: Any, b: Any, base: float) -> Any:
    """Return log(base^a + base^b) to that base; equal numbers, which may be infinite, have no difference."""
    per = math.log(base)
    apart = op.Neg(op.Abs(op.Sub(a, b)))
    more = op.Softplus(apart if per == 1 else op.Mul(apart, number(per, a)))
    unequal = op.Add(op.Max(a, b), more if per == 1 else op.Div(more, number(per, a)))
    return op.Where(op.Equal(a, b), op.Add(a, number(math.log(2) / per, a)), unequal)


def logaddexp(self: Any, other: Any) -> Any:
    """Translate aten.logaddexp."""
    return _log_of_sum(self, other, math.e)


def logaddexp2(self: Any, other: Any) -> Any:
    """Translate aten.logaddexp2."""
    return _log_of_sum(self, other, 2)


def hypot(self: Any, other: Any) -> Any:
    """Translate prims.hypot."""
    a, b = op.Abs(self), op.Abs(other)
    larger, smaller = op.Max(a, b), op.Min(a, b)
    ratio = op.Div(smaller, larger)
    length = op.Mul(larger, op.Sqrt(op.Add(op.Mul(ratio, ratio), number(1.0, self))))
    is_end = op.Or(op.Equal(larger, number(0.0, self)), op.IsInf(larger))  # neither has a ratio
    return op.Where(is_end, larger, length)


def signbit(self: Any) -> Any:
    """Translate aten.signbit, which torch's own form takes for x < 0: 1 / -0 is negative, and -0 is not less than 0."""
    below = op.Less(self, number(0, self))
    return op.Or(below, op.Less(op.Reciprocal(self), number(0.0, self))) if self.dtype.is_floating_point() else below


def copysign(self: Any, other: Any) -> Any:
    """Translate aten.copysign."""
    size = op.Abs(self)
    return op.Where(signbit(other), op.Neg(size), size)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.logaddexp.default: logaddexp,
    aten.logaddexp2.default: logaddexp2,
    prims.hypot.default: hypot,
    aten.signbit.default: signbit,
    aten.copysign.Tensor: copysign,
}
