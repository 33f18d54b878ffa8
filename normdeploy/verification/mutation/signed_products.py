"""A tensor in three numbers: its products with fixed patterns of random signs, by which it is found again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

SAME = 1e-6
"""Relative difference up to which a value of the module is taken for one of the traced graph."""

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


_SAMPLED = 4096
"""Elements of a large tensor that are looked at where it is only to be found again, not compared."""


class Fingerprints:
    """Products with signs of some elements of tensors, drawn and fixed by shape: by these a tensor is found again.

    They are a guess of which tensor it is, for those who compare all of its elements afterwards.
    """

    def __init__(self) -> None:
        self._patterns: dict[torch.Size, tuple[tuple[Tensor, ...] | None, Tensor]] = {}

    def of(self, y: Tensor) -> tuple[Tensor, float]:
        """Return the products of a tensor in float64, and the 2-norm of the elements looked at."""
        if y.shape not in self._patterns:
            self._patterns[y.shape] = self._drawn(y.shape)
        places, signs = self._patterns[y.shape]
        sample = y.reshape(-1) if places is None else y[places]
        return sample @ signs, float(torch.linalg.vector_norm(sample))

    @staticmethod
    def _drawn(shape: torch.Size) -> tuple[tuple[Tensor, ...] | None, Tensor]:
        count = math.prod(shape)
        generator = torch.Generator().manual_seed(count)
        taken = min(count, _SAMPLED)
        signs = torch.randint(0, 2, (taken, _PATTERNS), generator=generator).double().mul_(2).sub_(1)
        if taken == count:
            return None, signs
        places = torch.randint(0, count, (taken,), generator=generator).sort().values
        return tuple(torch.unravel_index(places, shape)), signs


@dataclass
class Prints:
    """Products with fixed signs of values of one shape, by name."""

    names: list[str] = field(default_factory=list)
    products: list[Tensor] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    _joined: tuple[Tensor, Tensor] | None = None

    def add(self, name: str, products: Tensor, size: float) -> None:
        """Take in a value."""
        self.names.append(name)
        self.products.append(products)
        self.sizes.append(size)
        self._joined = None

    def like(self, products: Tensor) -> list[str]:
        """Return the values with these products, nearest first; among equals the one computed first."""
        if self._joined is None:  # asked once for each call of the module: not joined anew each time
            self._joined = torch.stack(self.products), torch.tensor(self.sizes, dtype=torch.float64)
        away = (self._joined[0] - products).abs().amax(1) / self._joined[1]
        (near,) = torch.nonzero(away <= SAME, as_tuple=True)
        return [self.names[i] for i in near[away[near].argsort(stable=True)].tolist()]
