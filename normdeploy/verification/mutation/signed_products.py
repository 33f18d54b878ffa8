"""A tensor in three numbers: its products with fixed patterns of random signs, by which it is found again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_PATTERNS = 3
"""Of random signs: that other values agree in all by chance to 1e-6 is out of the question."""


class SignedProducts:
    """Products of tensors with signs, fixed by shape.

    A pattern is a product of signs by row and by column of a tensor as a matrix (the first two axes are its rows), so
    that one product of matrices gives all, and the sums over each channel besides.
    """

    def __init__(self) -> None:
        self._patterns: dict[torch.Size, tuple[Tensor, Tensor]] = {}

    def pattern(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Return signs by row and by column of a tensor of some shape as a matrix."""
        if shape not in self._patterns:
            rows = math.prod(shape[:2])
            generator = torch.Generator().manual_seed(len(self._patterns))
            sizes = (rows, _PATTERNS), (math.prod(shape[2:]), _PATTERNS)
            first, second = (torch.randint(0, 2, n, generator=generator).double().mul_(2).sub_(1) for n in sizes)
            self._patterns[shape] = first, second
        return self._patterns[shape]

    def rows(self, y: Tensor) -> Tensor:
        """Return each row's products with the signs by column."""
        return y.reshape(math.prod(y.shape[:2]), -1) @ self.pattern(y.shape)[1]

    def of(self, y: Tensor) -> Tensor:
        """Return the products of a tensor in float64; zeros where it is empty."""
        if not y.numel():
            return torch.zeros(_PATTERNS, dtype=torch.float64)
        return (self.rows(y) * self.pattern(y.shape)[0]).sum(0)
