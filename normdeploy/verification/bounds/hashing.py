"""Noise that is a function of the value: equal values round equally."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from normdeploy.array_types import Array

_PLACES = 1 << 18


def hashed_noise(values: Tensor, seed: int, *, distinct: bool = False) -> Tensor:
    """Return noise in [-1, 1) that is a function of each value and the seed: equal values, equal noise.

    Args:
        values: floats of any shape. distinct: of each value's place too, so that equal values get unequal noise.
    """
    # Hashed at float32's resolution: float64's own rounding must not make equal values look different
    # (most values are small, of which NumPy takes half of torch's time)
    clean: Array = values.detach().numpy()
    with np.errstate(over="ignore"):
        bits = clean.astype(np.float32).reshape(-1).view(np.int32)
    # products wrap, as hashing wants
    mixed = (bits ^ _places(bits.size) if distinct else bits) * np.int32(-1640531527)
    mixed += np.int32(_wrapped(seed * 747796405))
    mixed ^= mixed >> 15
    mixed *= np.int32(-2048144789)
    mixed ^= mixed >> 13
    mixed *= np.int32(-1028477387)
    return torch.from_numpy((mixed * 2.0**-31).astype(clean.dtype, copy=False).reshape(clean.shape))


def _places(count: int) -> Array:
    """Return a number for each of so many places."""
    return _first_places()[:count] if count <= _PLACES else _numbered(count)


@cache
def _first_places() -> Array:
    return _numbered(_PLACES)


def _numbered(count: int) -> Array:
    return np.arange(count, dtype=np.int32) * np.int32(668265263)


def _wrapped(number: int) -> int:
    """Return a number as int32 arithmetic holds it."""
    return (number + 2**31) % 2**32 - 2**31


def coherent_signs(values: Tensor, bits: int, seed: int) -> Tensor:
    """Return the direction, -1 or 1, in which each term of a long sum is rounded; 0 where it is not.

    A partial sum far larger than a term holds the term's leading bits alone. What is lost is a function of the term,
    not of the place in the sum, and changes sign with it: equal terms are rounded in one direction, time and again.
    Zeros and terms whose leading bits are all they have lose nothing.

    Args:
        values: the terms. bits: of float32's mantissa that the partial sums leave no room for. seed: of the directions.
    """
    size = values.detach().abs().to(torch.float32).contiguous().view(torch.int32)
    mask = (1 << bits) - 1
    leading = (size + (1 << bits >> 1)).bitwise_and_(~mask)  # what differs by less is one number to the sum
    lost = size.bitwise_and(mask) != 0
    direction = torch.where(hashed_noise(leading.view(torch.float32), seed) < 0, -1.0, 1.0)
    return (direction * lost).to(values.dtype) * values.sign()
