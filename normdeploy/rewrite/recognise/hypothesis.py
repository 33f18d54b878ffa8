"""What a region may turn out to be: a normalization in its general form.

For x, blocks of elements (a box over some axes; in a GroupNorm a slice of the channel axis too), m and v the block's
mean and biased variance (or, without a mean, v = mean(x^2) and m = 0)::

    y = scale (x - m) / sqrt(v + epsilon) + shift          epsilon inside the root
    y = scale (x - m) / (sqrt(v) + epsilon) + shift        epsilon outside

A variance with correction c is this form in other units: with r = n / (n - c), (x - m) / sqrt(r v + e) equals
(1 / sqrt r) (x - m) / sqrt(v + e / r), and (x - m) / (sqrt(r v) + e) equals
(1 / sqrt r) (x - m) / (sqrt(v) + e / sqrt r). The correction itself is kept only where n is dynamic, so that r is no
constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normdeploy.array_types import Floats


@dataclass(frozen=True)
class Blocks:
    """Which elements share statistics.

    Args:
        axes: the axes averaged over completely, ascending.
        split: the axis averaged over in slices (GroupNorm's channels); None if there is none.
        width: elements of one slice.
    """

    axes: tuple[int, ...]
    split: int | None = None
    width: int = 1

    def split_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in which ``split`` is two axes: slices, and elements of a slice."""
        if self.split is None:
            return shape
        return (*shape[: self.split], shape[self.split] // self.width, self.width, *shape[self.split + 1 :])

    def split_axes(self) -> tuple[int, ...]:
        """Return the averaged axes of :meth:`split_shape`."""
        if self.split is None:
            return self.axes
        moved = [axis + (axis > self.split) for axis in self.axes]
        return tuple(sorted([*moved, self.split + 1]))

    def count(self, shape: tuple[int, ...]) -> int:
        """Return the number of elements of one block."""
        inner = self.split_shape(shape)
        return int(np.prod([inner[axis] for axis in self.split_axes()], dtype=np.int64))


@dataclass(frozen=True)
class Norm:
    """One normalization, found.

    Args:
        blocks: which elements share statistics.
        centred: whether the mean is subtracted (LayerNorm) or not (RMSNorm).
        outside: whether epsilon is added to the standard deviation, not to the variance.
        epsilon: in the units of the biased variance (inside) or standard deviation (outside).
        scale: broadcastable to x; size 1 along every axis on which it is constant.
        shift: likewise.
        correction: 1 where the sum of squares is divided by n - 1 and n is dynamic; epsilon and scale are then in the
            units of that variance.
    """

    blocks: Blocks
    centred: bool
    outside: bool
    epsilon: float
    scale: Floats
    shift: Floats
    correction: int = 0

    def in_units_of(self, count: int) -> Norm:
        """Return the same normalization of blocks of ``count`` elements with the variance divided by count - 1."""
        ratio = count / (count - 1)
        epsilon = self.epsilon * (np.sqrt(ratio) if self.outside else ratio)
        return replace(self, epsilon=float(epsilon), scale=self.scale * np.sqrt(ratio), correction=1)

    def normalize(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the normalized values before scale and shift, and each block's condition m^2 / (v + epsilon)."""
        shape = x.shape
        inner = x.reshape(self.blocks.split_shape(shape))
        axes = self.blocks.split_axes()
        mean = inner.mean(axis=axes, keepdims=True)
        centred = inner - mean if self.centred else inner
        variance = np.square(centred).mean(axis=axes, keepdims=True)
        if self.correction:
            count = self.blocks.count(shape)
            variance = variance * (count / (count - self.correction))
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = factor_of(variance, self.epsilon, outside=self.outside)
            condition = np.square(mean * factor)
            normal = centred * factor
        return normal.reshape(shape), condition


def factor_of(variance: Floats, epsilon: float, *, outside: bool) -> Floats:
    """Return what the centred values are multiplied by."""
    result: Floats = 1.0 / (np.sqrt(variance) + epsilon) if outside else 1.0 / np.sqrt(variance + epsilon)
    return result
