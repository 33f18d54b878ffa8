"""Every normalization of the field's notebooks, written by hand the way their authors do.

Each class has the author's idiosyncrasies on purpose (where tensors are kept, what selects the mode). ``B`` are batch,
``L`` layer normalizations; the ids are those of docs/conformance.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class B1:
    """BatchNorm of a plain Python class: unbiased variance, a plain ``training`` attribute, plain tensors."""

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.eps, self.momentum, self.training = eps, momentum, True
        self.gain = torch.ones(width, requires_grad=True)
        self.shift = torch.zeros(width, requires_grad=True)
        self.seen_mean = torch.zeros(width)
        self.seen_var = torch.ones(width)

    def __call__(self, x: Tensor) -> Tensor:
        if self.training:
            mu, var = x.mean(0, keepdim=True), x.var(0, keepdim=True)
            with torch.no_grad():
                # (C,) becomes (1, C) here
                self.seen_mean = (1 - self.momentum) * self.seen_mean + self.momentum * mu
                self.seen_var = (1 - self.momentum) * self.seen_var + self.momentum * var
        else:
            mu, var = self.seen_mean, self.seen_var
        return self.gain * ((x - mu) / torch.sqrt(var + self.eps)) + self.shift


class B2(nn.Module):
    """BatchNorm over axis 0 only, whatever the rank; the mode is an argument, the statistics are Parameters."""

    def __init__(self, shape: int | tuple[int, ...], training: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.training = training
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))
        self.mean_so_far = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.var_so_far = nn.Parameter(torch.ones(shape), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean, var = torch.mean(x, dim=0), torch.var(x, dim=0, unbiased=True)
            self.mean_so_far.data = 0.9 * self.mean_so_far.data + 0.1 * mean.detach()
            self.var_so_far.data = 0.9 * self.var_so_far.data + 0.1 * var.detach()
        else:
            mean, var = self.mean_so_far, self.var_so_far
        return self.scale * (x - mean) / (var + self.eps) ** 0.5 + self.offset


class B3(nn.Module):
    """BatchNorm as arithmetic on arrays: biased, no running statistics, epsilon optional."""

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        return centred / ((centred**2).mean(0) + self.eps).sqrt()


class B4(nn.Module):
    """BatchNorm of (N, C) or (N, C, H, W): the mode is whether gradients are on, statistics are plain tensors."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        shape = (1, channels) if rank == 2 else (1, channels, 1, 1)
        self.gamma = nn.Parameter(torch.ones(shape))
        self.beta = nn.Parameter(torch.zeros(shape))
        self.moving_mean = torch.zeros(shape)
        self.moving_var = torch.ones(shape)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            hat = (x - self.moving_mean) / torch.sqrt(self.moving_var + 1e-5)
        else:
            axes = (0,) if x.ndim == 2 else (0, 2, 3)
            mean = x.mean(dim=axes, keepdim=True)
            var = ((x - mean) ** 2).mean(dim=axes, keepdim=True)
            hat = (x - mean) / torch.sqrt(var + 1e-5)
            self.moving_mean = (0.9 * self.moving_mean + 0.1 * mean).detach()
            self.moving_var = (0.9 * self.moving_var + 0.1 * var).detach()
        return self.gamma * hat + self.beta


class B5(nn.Module):
    """BatchNorm through a view to (N, C, -1), with the variance as E[x^2] - E[x]^2 and reassigned buffers."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, affine: bool = True, track_running_stats: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.affine, self.track, self.eps = channels, affine, track_running_stats, eps
        if affine:
            self.weight = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))
        if track_running_stats:
            self.register_buffer("running_mean", torch.zeros(channels))
            self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(shape[0], self.channels, -1)
        if self.training or not self.track:
            mean = x.mean(dim=[0, 2])
            var = (x**2).mean(dim=[0, 2]) - mean**2
            if self.training and self.track:
                self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
                self.running_var = 0.9 * self.running_var + 0.1 * var.detach()
        else:
            mean, var = self.running_mean, self.running_var
        x = (x - mean.view(1, -1, 1)) / torch.sqrt(var + self.eps).view(1, -1, 1)
        if self.affine:
            x = self.weight.view(1, -1, 1) * x + self.bias.view(1, -1, 1)
        return x.view(shape)


class L1:
    """LayerNorm of a plain Python class over axis 1 of (N, C): unbiased variance."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        self.eps = eps
        self.gain = torch.ones(width, requires_grad=True)
        self.shift = torch.zeros(width, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        hat = (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, keepdim=True) + self.eps)
        return self.gain * hat + self.shift


class L2(nn.Module):
    """The mistaken LayerNorm: it keeps running statistics of shape (*, 1), one per row, and evaluates with them."""

    def __init__(self, width: int, training: bool = True) -> None:
        super().__init__()
        self.training = training
        self.scale = nn.Parameter(torch.ones(width))
        self.offset = nn.Parameter(torch.zeros(width))
        self.mean_so_far: Tensor | float = 0.0
        self.var_so_far: Tensor | float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
            self.mean_so_far = 0.9 * self.mean_so_far + 0.1 * mean.detach()
            self.var_so_far = 0.9 * self.var_so_far + 0.1 * var.detach()
            return self.scale * (x - mean) / (var + 1e-6) ** 0.5 + self.offset
        return self.scale * (x - self.mean_so_far) / (self.var_so_far + 1e-6) ** 0.5 + self.offset


class L3(nn.Module):
    """LayerNorm as arithmetic on arrays: biased, epsilon optional."""

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        mean = x.sum(-1, keepdim=True) / width
        var = ((x - mean) ** 2).sum(-1, keepdim=True) / width
        return (x - mean) / torch.sqrt(var + self.eps)


class L4(nn.Module):
    """LayerNorm with epsilon added to the unbiased standard deviation."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(width))
        self.b = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a * (x - mean) / (std + self.eps) + self.b
