"""Noise that is a function of the value: equal values round equally."""

from __future__ import annotations

import torch
from torch import Tensor


def hashed_noise(values: Tensor, seed: int, *, distinct: bool = False) -> Tensor:
    """Return noise in [-1, 1) that is a function of each value and the seed: equal values, equal noise.

    Args:
        values: floats of any shape. distinct: of each value's place too, so that equal values get unequal noise.
    """
    # Hashed at float32's resolution: float64's own rounding must not make equal values look different
    bits = values.detach().to(torch.float32).contiguous().view(torch.int32)
    if distinct:
        bits = bits ^ (torch.arange(bits.numel(), dtype=torch.int32).reshape(bits.shape) * 668265263)
    mixed = bits * -1640531527 + _wrapped(seed * 747796405)  # products wrap, as hashing wants
    mixed ^= mixed >> 15
    mixed *= -2048144789
    mixed ^= mixed >> 13
    mixed *= -1028477387
    return mixed.to(values.dtype).mul_(2.0**-31)


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
