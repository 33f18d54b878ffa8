"""Batch statistics over all processes, on GPU and on CPU.

torch's SyncBatchNorm needs a GPU. Here one differentiable function joins the statistics with plain collectives, so
that it works with gloo on CPU and nccl on GPU alike, and for every convention of :class:`normdeploy.nn.BatchNorm`.

Forward, over processes i with n_i values, mean m_i and sum of squared distances q_i = n_i v_i (one all_gather)::

    n = sum n_i      m = sum n_i m_i / n      q = sum (q_i + n_i (m_i - m)^2)      v = q / n

Backward, with x' = (x - m) f(v) and f(v) = 1 / sqrt(r v + e) or 1 / (sqrt(r v) + e), sums over all processes (one
all_reduce)::

    dx = f(v) (dy - sum(dy) / n) + (2 / n) f'(v) (x - m) sum(dy (x - m))
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from normdeploy.errors import ModelError
from normdeploy.nn.batchnorm import BatchNorm
from normdeploy.nn.convention import EpsOn, at_least_float32, ratio

_Kind = TypeVar("_Kind", bound=BatchNorm)


class _Standardize(torch.autograd.Function):
    """Standardize x with the statistics of all processes; also returns mean, biased variance and count of all."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dims: list[int], correction: float, eps: float, eps_on: EpsOn
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = at_least_float32(x)
        own = wide.mean(dims, keepdim=True)
        squares = (wide - own).square().sum(dims, keepdim=True)
        own_count = x.numel() // own.numel()
        packed = torch.cat([own.flatten(), squares.flatten(), own.new_tensor([float(own_count)])])
        everyone = torch.stack(_gathered(packed))
        counts = everyone[:, -1:]
        means, spreads = everyone[:, : own.numel()], everyone[:, own.numel() : -1]
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = (spreads + counts * (means - mean).square()).sum(0) / count
        mean, variance = mean.view_as(own), variance.view_as(own)
        r = ratio(float(count), correction)
        if eps_on == "variance":
            inverse = (r * variance + eps).rsqrt()
            slope = -r / 2 * inverse**3
        else:
            deviation = (r * variance).sqrt()
            inverse = 1 / (deviation + eps)
            # at deviation 0 every x - m is 0, and so is the term that the slope multiplies
            slope = torch.where(deviation > 0, -(inverse**2) * r / (2 * deviation), 0.0)
        ctx.save_for_backward(x, mean, inverse, slope, count)
        ctx.dims = dims
        ctx.mark_non_differentiable(mean, variance, count)
        return ((wide - mean) * inverse).to(x.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, mean, inverse, slope, count = ctx.saved_tensors
        centred = at_least_float32(x) - mean
        wide = at_least_float32(grad)
        sums = torch.stack([wide.sum(ctx.dims, keepdim=True), (wide * centred).sum(ctx.dims, keepdim=True)])
        dist.all_reduce(sums)
        result = inverse * (wide - sums[0] / count) + (2 / count) * slope * centred * sums[1]
        return result.to(x.dtype), None, None, None, None


def _gathered(tensor: Tensor) -> list[Tensor]:
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor.contiguous())
    return everyone


class SyncBatchNorm(BatchNorm):
    """A :class:`BatchNorm` whose batch is the joined batch of all processes.

    In evaluation, and where there is one process only, it does what :class:`BatchNorm` does.

    Args, Shape, Raises: as for :class:`BatchNorm`.

    Source:
        the gradient is that of S. Ioffe, C. Szegedy, Batch Normalization, 2015, section 3, with f(v) left general.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x``, this process's share (N_i, C, *) of the batch."""
        alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        if alone or not (self.training or self.running_mean is None):
            return super().forward(x)
        dims = self.axes(x)
        standardized: tuple[Tensor, Tensor, Tensor, Tensor] = _Standardize.apply(  # type: ignore[no-untyped-call]
            x, list(dims), self.correction, self.eps, self.eps_on
        )  # torch leaves Function.apply untyped
        result, mean, variance, count = standardized
        if self.training and self.running_mean is not None:
            units = count / (count - self.running_correction)
            self._update(mean.reshape(self.shape), variance.reshape(self.shape) * units)
        if self.weight is not None and self.bias is not None:
            seen = [1 if d in dims else size for d, size in enumerate(x.shape)]
            result = result * self.weight.view(seen) + self.bias.view(seen)
        return result.to(x.dtype)


def synchronized(model: nn.Module) -> list[str]:
    """Replace, in place, every BatchNorm of torch's and ours in ``model`` by a :class:`SyncBatchNorm` with the same
    tensors.

    Hand-written normalizations stay as they are: their batch is the process's own.

    Returns:
        list[str]: paths of the modules that were replaced.

    Raises:
        ModelError: the network itself is a BatchNorm (there is nothing to replace it in).

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    >>> synchronized(net)
    ['1']
    >>> plain(net), type(net[1]).__name__
    (['1'], 'BatchNorm1d')
    """
    if isinstance(model, (BatchNorm, nn.modules.batchnorm._BatchNorm)):
        raise ModelError("the network is a single BatchNorm; expected one inside a network: wrap it in nn.Sequential")
    replaced = []
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            kind = nn.modules.batchnorm._BatchNorm
            if isinstance(child, kind) or (isinstance(child, BatchNorm) and not isinstance(child, SyncBatchNorm)):
                setattr(parent, name, _as_sync(child))
                replaced.append(f"{path}.{name}" if path else name)
    return replaced


def _as_sync(module: nn.modules.batchnorm._BatchNorm | BatchNorm) -> SyncBatchNorm:
    sync = _like(SyncBatchNorm, module if isinstance(module, BatchNorm) else BatchNorm.from_torch(module))
    _share_tensors(module, sync)
    sync.__dict__["_plain_module"] = module  # past nn.Module's registration: it is no child
    return sync.train(module.training)


def _like(kind: type[_Kind], module: BatchNorm) -> _Kind:
    return kind(
        module.shape,
        module.eps,
        module.momentum,
        module.affine,
        module.track_running_stats,
        correction=module.correction,
        running_correction=module.running_correction,
        eps_on=module.eps_on,
        over=module.over,
    )


def _share_tensors(source: nn.Module, target: nn.Module) -> None:
    """Give ``target`` the very tensors of ``source``, not copies: an optimizer may hold them."""
    for name in source._parameters:
        target._parameters[name] = source._parameters[name]
    for name in source._buffers:
        target._buffers[name] = source._buffers[name]


def plain(model: nn.Module) -> list[str]:
    """Undo :func:`synchronized` in place: the original modules are back, with the tensors as they are now.

    A :class:`SyncBatchNorm` that was built by hand becomes a :class:`BatchNorm`.

    Returns:
        list[str]: paths of the modules that were put back.

    >>> net = nn.Sequential(nn.Linear(3, 4), SyncBatchNorm(4))
    >>> plain(net), type(net[1]).__name__
    (['1'], 'BatchNorm')
    """
    restored = []
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SyncBatchNorm):
                setattr(parent, name, _as_plain(child))
                restored.append(f"{path}.{name}" if path else name)
    return restored


def _as_plain(sync: SyncBatchNorm) -> nn.Module:
    original: nn.Module | None = sync.__dict__.get("_plain_module")
    original = original or _like(BatchNorm, sync)
    _share_tensors(sync, original)
    return original.train(sync.training)
