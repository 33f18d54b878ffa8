"""Mean and variance of everything that streams by, exact to float64 rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from normdeploy.errors import UsageError


class Moments:
    """Count, mean and sum of squared distances of a stream, per channel, in float64.

    Batches of n_i values with mean m_i and squared distances q_i are pooled exactly, whatever their sizes::

        n = sum n_i      m = sum n_i m_i / n      q = sum (q_i + n_i (m_i - m)^2)

    Averaging the batches' variances instead misses the second part of q: how the batches' means differ.

    Source:
        T. F. Chan, G. H. Golub, R. J. LeVeque, Algorithms for Computing the Sample Variance, 1983, equations 2.1.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._squares = torch.zeros(0, dtype=torch.float64)

    def update(self, x: Tensor, axes: Sequence[int]) -> None:
        """Take in a batch.

        Args:
            x: floating point, any shape; the axes that are not averaged over must have the same sizes each time.
            axes: which are averaged over.

        Raises:
            UsageError: the other axes have other sizes than before.
        """
        wide = x.detach().to(torch.float64)
        mean = wide.mean(list(axes), keepdim=True)
        squares = (wide - mean).square().sum(list(axes))
        self._merge(x.numel() // max(1, mean.numel()), mean.reshape(squares.shape), squares)

    def _merge(self, count: int, mean: Tensor, squares: Tensor) -> None:
        if count == 0:
            return
        if self.count == 0:
            self.count, self._mean, self._squares = count, mean, squares
            return
        if mean.shape != self._mean.shape:
            raise UsageError(
                f"statistics of shape {tuple(mean.shape)} after {tuple(self._mean.shape)}; expected one shape"
            )
        total = self.count + count
        step = mean - self._mean
        self._mean = self._mean + step * (count / total)
        self._squares = self._squares + squares + step.square() * (self.count * count / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """Mean, float64."""
        return self._mean

    def variance(self, correction: float = 0) -> Tensor:
        """Return the variance with ``correction``, float64.

        Raises:
            UsageError: there were not more values than the correction takes off.
        """
        if self.count <= correction:
            raise UsageError(f"{self.count} values with correction {correction}; expected more: stream more data")
        return self._squares / (self.count - correction)

    def joined(self) -> Moments:
        """Return the moments of all processes together (a collective call); alone, those of this one."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return self
        size = torch.tensor([self._mean.numel()], device=self._mean.device)
        dist.all_reduce(size, op=dist.ReduceOp.MAX)  # a process without data knows no shape
        packed = torch.zeros(1 + 2 * int(size), dtype=torch.float64, device=self._mean.device)
        packed[0] = self.count
        if self.count:
            packed[1 : 1 + int(size)], packed[1 + int(size) :] = self._mean.flatten(), self._squares.flatten()
        everyone = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, packed)
        shape = self._mean.shape if self.count else (int(size),)
        result = Moments()
        for part in everyone:
            mean, squares = part[1:].reshape(2, *shape) if math.prod(shape) else (part[:0], part[:0])
            result._merge(int(part[0]), mean, squares)
        return result
