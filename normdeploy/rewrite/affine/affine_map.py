"""The channel-wise affine map A(x) = s * x + t, as two exact arrays that broadcast against x.

``s`` and ``t`` have the rank of x; along each axis their size is 1 (the map does not vary there) or x's own size (it
does). A BatchNorm over (N, C, H, W) is a pair of (1, C, 1, 1) arrays. Keeping the full rank makes following the channel
through Transpose, Reshape or Split an array operation on s and t, so that no axis is ever guessed from a size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Floats
from normdeploy.graph import compress

SMALLEST = float(np.finfo(np.float64).tiny)
"""The smallest number by which float64 can divide."""


def varying(array: Floats) -> frozenset[int]:
    """Return the axes along which ``array`` is larger than 1."""
    return frozenset(axis for axis, size in enumerate(array.shape) if size != 1)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A(x) = scale * x + shift, exactly.

    Args:
        scale: float64, rank of x, each dimension 1 or x's.
        shift: likewise.
    """

    scale: Floats
    shift: Floats

    @classmethod
    def of(cls, scale: npt.ArrayLike, shift: npt.ArrayLike, rank: int) -> AffineMap:
        """Make a map for an x of ``rank`` dimensions; leading axes of size 1 are added, constant axes shrunk."""
        arrays = []
        for item in (scale, shift):
            array = np.asarray(item, dtype=np.float64)
            if array.ndim > rank:
                raise ValueError(f"a constant of rank {array.ndim} does not broadcast into rank {rank}")
            arrays.append(compress(array.reshape((1,) * (rank - array.ndim) + array.shape)))
        return cls(arrays[0], arrays[1])

    @property
    def rank(self) -> int:
        """Rank of x."""
        return self.scale.ndim

    @property
    def axes(self) -> frozenset[int]:
        """Axes along which the map varies."""
        return varying(self.scale) | varying(self.shift)

    @property
    def finite(self) -> bool:
        """Whether s and t hold no NaN and no infinity."""
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())

    @property
    def too_small(self) -> float | None:
        """A scale that is not 0, but by which float64 cannot divide; None where there is none."""
        found = self.scale[(self.scale != 0) & (np.abs(self.scale) < SMALLEST)]
        return float(found[0]) if found.size else None

    @property
    def no_scale(self) -> bool:
        """Whether s = 1 everywhere."""
        return bool((self.scale == 1).all())

    @property
    def no_shift(self) -> bool:
        """Whether t = 0 everywhere."""
        return bool((self.shift == 0).all())

    def then(self, after: AffineMap) -> AffineMap:
        """Return the composition after(self(x))."""
        with np.errstate(over="ignore", invalid="ignore"):  # who composes asks whether the result can be stored
            scale, shift = after.scale * self.scale, after.scale * self.shift + after.shift
        return AffineMap(compress(scale), compress(shift))

    def same(self, other: AffineMap) -> bool:
        """Tell whether two maps are equal, number for number."""
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.shift, other.shift)

    def __call__(self, x: Floats) -> Floats:
        """Return s * x + t for a constant x."""
        scaled = x if self.no_scale else self.scale * x
        return scaled if self.no_shift else scaled + self.shift
