"""Networks for the benchmarks: one structure, several spellings of its normalizations, at sizes worth timing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FrozenBatchNorm(nn.Module):
    """Evaluation-mode BatchNorm written out, statistics as parameters without gradient, (1, C, 1, 1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        shape = (1, channels, 1, 1)
        self.gamma, self.beta = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.mean = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(shape), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * (x - self.mean) / torch.sqrt(self.variance + 1e-5) + self.beta


class ViewBatchNorm(FrozenBatchNorm):
    """The same through a view to (N, C, -1) and back, with 1/sqrt as a power."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(x.shape[0], x.shape[1], -1)
        mean, variance = self.mean.flatten(2), self.variance.flatten(2)
        scaled = (flat - mean) * (variance + 1e-5).pow(-0.5) * self.gamma.flatten(2) + self.beta.flatten(2)
        return scaled.view(x.shape)


class BiasedLayerNorm(nn.Module):
    """LayerNorm written out with E[x^2] - E[x]^2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.gamma + self.beta


class UnbiasedLayerNorm(BiasedLayerNorm):
    """LayerNorm written out with torch.var's default, the unbiased variance."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) + self.beta


class StdLayerNorm(BiasedLayerNorm):
    """LayerNorm with epsilon added to the unbiased standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return self.gamma * (x - mean) / (x.std(-1, keepdim=True) + 1e-6) + self.beta


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = norm(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = norm(channels)
        self.short = nn.Sequential()
        if stride > 1 or channels_in != channels:
            self.short = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
        return torch.relu(y + self.short(x))


class ResidualNet(nn.Module):
    """(N, 3, 64, 64) -> (N, 100): four residual blocks, the norm given."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), norm(32), nn.ReLU())
        self.blocks = nn.Sequential(
            Residual(32, 32, 1, norm),
            Residual(32, 64, 2, norm),
            Residual(64, 128, 2, norm),
            Residual(128, 128, 1, norm),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class MixerNet(nn.Module):
    """(N, T, width) -> (N, 100): four residual two-layer perceptrons, each behind the norm given."""

    def __init__(self, norm: type[nn.Module] = nn.LayerNorm, width: int = 192, hidden: int = 384) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(width) for _ in range(4)])
        self.up = nn.ModuleList([nn.Linear(width, hidden) for _ in range(4)])
        self.down = nn.ModuleList([nn.Linear(hidden, width) for _ in range(4)])
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(torch.relu(up(norm(x))))
        return self.head(x.mean(1))


class Branches(nn.Module):
    """Training-time block of MobileOne and RepVGG: 3x3 and 1x1 convolutions and an identity, each with a norm."""

    def __init__(self, channels: int, copies: int = 1) -> None:
        super().__init__()
        self.dense = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))
            for _ in range(copies)
        )
        self.pointwise = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.identity = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.identity(x) + self.pointwise(x)
        for branch in self.dense:
            y = y + branch(x)
        return torch.relu(y)

    def merged(self) -> nn.Module:
        """Return the block as one convolution, the way the authors' conversion scripts do, by hand in float64."""
        channels = self.identity.num_features
        weight = torch.zeros(channels, channels, 3, 3, dtype=torch.float64)
        bias = torch.zeros(channels, dtype=torch.float64)
        centre = torch.eye(channels, dtype=torch.float64)[:, :, None, None]
        kernels = [(branch[0].weight.double(), branch[1]) for branch in self.dense]
        kernels += [(nn.functional.pad(self.pointwise[0].weight.double(), (1, 1, 1, 1)), self.pointwise[1])]
        kernels += [(nn.functional.pad(centre, (1, 1, 1, 1)), self.identity)]
        with torch.no_grad():
            for kernel, norm in kernels:
                scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
                weight += kernel * scale[:, None, None, None]
                bias += norm.bias.double() - scale * norm.running_mean.double()
            convolution = nn.Conv2d(channels, channels, 3, 1, 1)
            convolution.weight.copy_(weight)
            convolution.bias.copy_(bias)
        return nn.Sequential(convolution, nn.ReLU())


class BranchNet(nn.Module):
    """(N, 3, 32, 32) -> (N, 100): four multi-branch blocks."""

    def __init__(self, copies: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 3, 1, 1)
        self.blocks = nn.Sequential(*(Branches(48, copies) for _ in range(4)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 100))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))

    def merged(self) -> nn.Module:
        """Return the network with every block merged by hand."""
        return nn.Sequential(self.stem, *(block.merged() for block in self.blocks), self.head)


def settle(network: nn.Module, seed: int = 0) -> nn.Module:
    """Give every normalization statistics and scales, the same for every spelling, and return the network."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                tensors = (module.weight, module.bias, module.running_mean, module.running_var)
            elif isinstance(module, FrozenBatchNorm):
                tensors = (module.gamma, module.beta, module.mean, module.variance)
            elif isinstance(module, nn.LayerNorm):
                tensors = (module.weight, module.bias)
            elif isinstance(module, BiasedLayerNorm):
                tensors = (module.gamma, module.beta)
            else:
                continue
            for position, tensor in enumerate(tensors):
                value = torch.rand(tensor.numel(), generator=random).reshape(tensor.shape)
                tensor.copy_(value + 0.5 if position in (0, 3) else value - 0.5)
    return network.eval()


def residual_net() -> nn.Module:
    """Return a ResidualNet that is the same each time: what a command names as SOURCE."""
    torch.manual_seed(0)
    return settle(ResidualNet())


def mixer_net() -> nn.Module:
    """Return a MixerNet that is the same each time."""
    torch.manual_seed(0)
    return settle(MixerNet())
