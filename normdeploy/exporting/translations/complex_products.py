"""Products of complex numbers, each a pair of real ones along an axis behind all others.

sum (a + ib)(c + id) = (sum ac - sum bd) + i (sum ad + sum bc)    for any einsum of two, and any matrix product
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from normdeploy.exporting.translations.attention_translation import ints, op
from normdeploy.exporting.translations.delegated import NoTranslationError

PAIR = 2
"""Numbers of each element: its real and its imaginary part."""


def part(x: Any, index: int) -> Any:
    """Return the real (0) or imaginary (1) parts."""
    return op.Gather(x, op.Constant(value_int=index), axis=-1)


def joined(real: Any, imaginary: Any) -> Any:
    """Return pairs of their parts."""
    return op.Concat(op.Unsqueeze(real, ints(-1)), op.Unsqueeze(imaginary, ints(-1)), axis=-1)


def einsum(equation: str, tensors: Sequence[Any], path: Sequence[int] | None = None) -> Any:
    """Translate aten.einsum of one or two complex tensors.

    Raises:
        NoTranslationError: there are more of them.
    """
    del path
    if len(tensors) == 1:
        return joined(*(op.Einsum(part(tensors[0], index), equation=equation) for index in range(PAIR)))
    if len(tensors) > 2:
        raise NoTranslationError(f"an einsum of {len(tensors)} complex tensors; expected two: write it as several")
    return _of_parts(lambda a, b: op.Einsum(a, b, equation=equation), *tensors)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's name
    """Translate aten.linear of complex numbers: x W^T + b."""
    y = einsum("...i,oi->...o", [input, weight])
    return y if bias is None else op.Add(y, bias)


def matrix_product(self: Any, other: Any) -> Any:
    """Translate aten.mm and aten.bmm of complex numbers."""
    return _of_parts(op.MatMul, self, other)


def _of_parts(multiply: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    (a, b), (c, d) = ((part(tensor, 0), part(tensor, 1)) for tensor in (x, y))
    ac, bd, ad, bc = (multiply(*pair) for pair in ((a, c), (b, d), (a, d), (b, c)))
    return joined(op.Sub(ac, bd), op.Add(ad, bc))
