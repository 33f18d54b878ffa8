"""Batch normalization in every convention people train with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.errors import InputError, ModelError, UsageError
from normdeploy.nn.convention import EpsOn, check_convention, placed_as, ratio, standardize

_STOCK = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class BatchNorm(nn.Module):
    """Normalize each channel over the batch: y = g (x - m) / sqrt(v + e) + b.

    In training m and v are the mean and the variance of the batch, and running averages of them are kept; in
    evaluation they are those running averages (or again the batch's own, where none are kept).

    Args:
        num_features: number C of channels; or the shape of one statistic where ``over`` is given.
        eps: epsilon e.
        momentum: weight of the new batch, ``running = (1 - momentum) running + momentum new``; None: every batch
            weighs the same.
        affine: whether there are a scale g and a shift b.
        track_running_stats: whether running averages are kept.
        correction: of the variance that normalizes: 0 biased, 1 unbiased.
        running_correction: of the variance that is kept.
        eps_on: ``"variance"``: sqrt(v + e); ``"deviation"``: sqrt(v) + e.
        over: axes that are averaged over; None: all but 1. For any other choice statistics have the shape of the
            remaining axes.

    Shape:
        input (N, C, *), output the same; C and * as ``num_features`` says.

    Raises:
        UsageError: an argument does not fit, or a batch has too few values for the correction.
        InputError: the input's shape does not fit.

    The state has torch's names (``weight``, ``bias``, ``running_mean``, ``running_var``, ``num_batches_tracked``); with
    ``correction=0, running_correction=1, eps_on="variance", over=None`` it also has torch's meaning: see
    :meth:`from_torch`.

    Source:
        S. Ioffe, C. Szegedy, Batch Normalization, 2015, algorithms 1 and 2 (correction 0; running correction 1).
    """

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int | Sequence[int],
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        correction: float = 0,
        running_correction: float = 1,
        eps_on: EpsOn = "variance",
        over: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_convention(correction, eps, eps_on)
        check_convention(running_correction, eps, eps_on)
        if momentum is not None and not 0 <= momentum <= 1:
            raise UsageError(f"momentum={momentum}; expected a number in [0, 1], or None for a cumulative average")
        self.shape = (num_features,) if isinstance(num_features, int) else tuple(num_features)
        if over is None and len(self.shape) != 1:
            raise UsageError(f"num_features={num_features}; expected one number of channels where over is not given")
        self.eps, self.momentum, self.eps_on = eps, momentum, eps_on
        self.correction, self.running_correction = correction, running_correction
        self.over = None if over is None else tuple(over)
        self.affine, self.track_running_stats = affine, track_running_stats
        for name, fill in (("weight", torch.ones), ("bias", torch.zeros)):
            self.register_parameter(
                name, nn.Parameter(fill(self.shape, device=device, dtype=dtype)) if affine else None
            )
        tracked = track_running_stats
        self.register_buffer("running_mean", torch.zeros(self.shape, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", torch.ones(self.shape, device=device, dtype=dtype) if tracked else None)
        counter = torch.zeros((), dtype=torch.long, device=device)
        self.register_buffer("num_batches_tracked", counter if tracked else None)

    @property
    def num_features(self) -> int:
        """Number of values of one statistic."""
        return math.prod(self.shape)

    def reset_running_stats(self) -> None:
        """Forget the running averages."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def axes(self, x: Tensor) -> tuple[int, ...]:
        """Return the axes of ``x`` that are averaged over.

        Raises:
            InputError: ``x`` does not have the shape that the statistics need.
        """
        dims = tuple(d for d in range(x.ndim) if d != 1) if self.over is None else tuple(d % x.ndim for d in self.over)
        left = tuple(size for d, size in enumerate(x.shape) if d not in dims)
        if x.ndim < 2 or left != self.shape:
            raise InputError(
                f"{type(self).__name__} got shape {tuple(x.shape)}, of which {left} remain after averaging over axes "
                f"{dims}; "
                f"expected {self.shape} to remain: the channels are on another axis, or there are more or fewer of them"
            )
        return dims

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` of shape (N, C, *)."""
        dims = self.axes(x)
        batch_statistics = self.training or self.running_mean is None
        if self.over is None and self.eps_on == "variance":
            if not batch_statistics:
                return functional.batch_norm(
                    x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
                )
            # torch's kernel refuses epsilon 0 and knows correction 0; other corrections are a change of units that
            # needs n as a number, not as a symbol
            if self.eps > 0 and (self.correction == 0 or not torch.compiler.is_compiling()):
                return self._by_kernel(x)
        return self._written_out(x, dims, batch_statistics)

    def _by_kernel(self, x: Tensor) -> Tensor:
        weight, eps = self.weight, self.eps
        count = x.numel() // self.num_features
        ratio(count, 1)  # one value has no spread; the kernel would refuse it in words of its own
        if self.correction:
            r = ratio(count, self.correction)
            ones = torch.ones(self.shape, dtype=torch.float32 if x.dtype.itemsize < 4 else x.dtype, device=x.device)
            weight = (ones if weight is None else weight) / math.sqrt(r)
            eps = eps / r
        keeps = self.training and self.running_mean is not None
        if not keeps:
            return functional.batch_norm(x, None, None, weight, self.bias, True, 0.0, eps)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        if self.momentum is not None and self.running_correction == 1:
            self.num_batches_tracked.add_(1)
            return functional.batch_norm(
                x, self.running_mean, self.running_var, weight, self.bias, True, self.momentum, eps
            )
        # with momentum 1 the kernel leaves the batch's own mean and unbiased variance in the scratch tensors
        mean, unbiased = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        result = functional.batch_norm(x, mean, unbiased, weight, self.bias, True, 1.0, eps)
        self._update(mean, unbiased * ((count - 1) / (count - self.running_correction)))
        return result

    def _written_out(self, x: Tensor, dims: tuple[int, ...], batch_statistics: bool) -> Tensor:
        seen = [1 if d in dims else size for d, size in enumerate(x.shape)]
        if batch_statistics:
            result, mean, variance = standardize(x, dims, correction=self.correction, eps=self.eps, eps_on=self.eps_on)
            if self.training and self.running_mean is not None:
                count = x.numel() // self.num_features
                units = (count - self.correction) / (count - self.running_correction)
                self._update(mean.reshape(self.shape), variance.reshape(self.shape) * units)
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            if self.over is None and x.dtype == self.running_var.dtype and not torch.compiler.is_compiling():
                return self._by_running_kernel(x)
            mean, variance = self.running_mean.view(seen), self.running_var.view(seen)
            if self.eps_on == "deviation":
                result = (x - mean) / (variance.sqrt() + self.eps)
            else:
                result = (x - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is not None and self.bias is not None:
            result = result * self.weight.view(seen) + self.bias.view(seen)
        return result.to(x.dtype)

    def _by_running_kernel(self, x: Tensor) -> Tensor:
        """Evaluate with epsilon on the deviation by torch's kernel: the whole divisor goes into its scale."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = (self.running_var.sqrt() + self.eps).reciprocal()
        scale = scale if self.weight is None else self.weight * scale
        ones = torch.ones_like(self.running_var)
        # the kernel takes no epsilon 0; 1 + 1e-30 is 1 in every dtype
        return functional.batch_norm(x, self.running_mean, ones, scale, self.bias, False, 0.0, 1e-30)

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        """Take the statistics of one batch into the running averages."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            # a tensor as factor for the cumulative average: reading the counter as a number would stop torch.compile
            factor = self.num_batches_tracked.to(running.dtype).reciprocal() if self.momentum is None else self.momentum
            running.add_((new.to(running.dtype) - running) * factor)

    def coincides_with_torch(self) -> bool:
        """Tell whether torch's BatchNorm computes and keeps the same."""
        return self.correction == 0 and self.running_correction == 1 and self.eps_on == "variance" and self.over is None

    @classmethod
    def from_torch(cls, module: nn.modules.batchnorm._BatchNorm) -> BatchNorm:
        """Return a BatchNorm with the configuration and a copy of the state of a stock module (1d, 2d, 3d or Sync)."""
        ours = cls(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.running_mean is not None,
            **placed_as(module.weight, module.running_mean),
        )
        ours.load_state_dict(module.state_dict())
        return ours.train(module.training)

    def to_torch(self, rank: int) -> nn.modules.batchnorm._BatchNorm:
        """Return a stock module with the same configuration and a copy of the state.

        Args:
            rank: number of axes behind the channels that it shall accept: 1 (also none), 2 or 3.

        Raises:
            UsageError: ``rank`` is none of these.
            ModelError: torch's convention is another one.
        """
        if rank not in _STOCK:
            raise UsageError(f"rank={rank}; expected 1, 2 or 3: torch has BatchNorm1d, 2d and 3d")
        if not self.coincides_with_torch():
            raise ModelError(
                f"{self} has no equal in torch, whose BatchNorm has correction=0, running_correction=1, "
                "eps_on='variance', over=None: keep this module"
            )
        stock = _STOCK[rank](
            self.num_features,
            self.eps,
            self.momentum,
            self.affine,
            self.track_running_stats,
            **placed_as(self.weight, self.running_mean),
        )
        stock.load_state_dict(self.state_dict())
        return stock.train(self.training)

    def extra_repr(self) -> str:
        """Describe the convention."""
        shape = self.shape[0] if len(self.shape) == 1 else self.shape
        text = f"{shape}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"
        text += f", track_running_stats={self.track_running_stats}, correction={self.correction}"
        text += f", running_correction={self.running_correction}, eps_on={self.eps_on!r}"
        return text + ("" if self.over is None else f", over={self.over}")
