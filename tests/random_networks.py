"""Networks drawn at random: convolutional ones and ones over tokens, norms stock and by hand in every place."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.conformance import by_hand

Make = Callable[[], nn.Module]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


class Joined(nn.Module):
    """Its input beside what it makes of it, as in a DenseNet."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.inner(x)], 1)


class ChannelsLast(nn.Module):
    """A norm over the channels of (N, C, *), written for the last axis."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.movedim(1, -1)).movedim(-1, 1)
        return y


class Held(nn.Module):
    """A plain Python object as a layer."""

    def __init__(self, layer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Affine(nn.Module):
    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        shape = (channels, *(1,) * rank)
        self.scale, self.shift = nn.Parameter(torch.rand(shape) + 0.5), nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, self.scale, x)


class Parallel(nn.Module):
    """A training-time block: 3x3, 1x1 and identity branches, each with its norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.narrow = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.identity = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.wide(x) + self.narrow(x) + self.identity(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.project(x).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return y


def _image_norm(channels: int, rng: random.Random) -> nn.Module:
    makers: list[Make] = [
        lambda: nn.BatchNorm2d(channels),
        lambda: nn.BatchNorm2d(channels),
        lambda: by_hand.B5(channels),
        lambda: nn.GroupNorm(2, channels),
        lambda: nn.InstanceNorm2d(channels, affine=True),
        lambda: ChannelsLast(nn.LayerNorm(channels)),
        lambda: ChannelsLast(by_hand.L4(channels)),
        lambda: ChannelsLast(nn.RMSNorm(channels)),
        lambda: Affine(channels, 2),
    ]
    return rng.choice(makers)()


def _activation(rng: random.Random) -> nn.Module:
    kinds = (nn.ReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.ReLU6, nn.Identity, nn.Mish)
    return rng.choice(kinds)()


def _spatial(rng: random.Random) -> nn.Module:
    makers: list[Make] = [
        lambda: nn.AvgPool2d(2, 1),
        lambda: nn.AvgPool2d(3, 1, 1),
        lambda: nn.MaxPool2d(2, 1),
        lambda: nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(2, 1)),
        lambda: nn.Upsample(scale_factor=2),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: nn.ReflectionPad2d(1),
    ]
    return rng.choice(makers)()


def convolutional(rng: random.Random) -> tuple[nn.Module, Tensor]:
    """Return a network over (2, 3, 12, 12) and an example."""
    width = rng.choice([4, 6, 8])
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=rng.choice([1, 2]), padding=rng.choice([0, 1]))]
    for _ in range(rng.randrange(2, 5)):
        kind = rng.choice(["norm", "norm", "conv", "residual", "joined", "spatial", "transposed", "parallel"])
        if kind == "norm":
            layers += [_image_norm(width, rng), _activation(rng)]
        elif kind == "conv":
            wider = rng.choice([4, 6, 8])
            layers.append(nn.Conv2d(width, wider, rng.choice([1, 3]), padding=1, groups=rng.choice([1, 2]), bias=False))
            width = wider
        elif kind == "residual":
            conv = nn.Conv2d(width, width, 3, padding=1)
            layers.append(
                Residual(nn.Sequential(_image_norm(width, rng), _activation(rng), conv, _image_norm(width, rng)))
            )
        elif kind == "joined":
            layers.append(Joined(nn.Sequential(nn.Conv2d(width, width, 1), _image_norm(width, rng))))
            width *= 2
        elif kind == "spatial":
            layers.append(_spatial(rng))
        elif kind == "transposed":
            layers += [nn.ConvTranspose2d(width, 4, 2, stride=2), _image_norm(4, rng)]
            width = 4
        else:
            layers.append(Parallel(width))
    if rng.random() < 0.7:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(width), nn.Linear(width, 5)]
    return nn.Sequential(*layers), torch.randn(2, 3, 12, 12)


def _token_norm(width: int, rng: random.Random) -> nn.Module:
    makers: list[Make] = [
        lambda: nn.LayerNorm(width),
        lambda: nn.LayerNorm(width, bias=False),
        lambda: nn.RMSNorm(width),
        lambda: Held(by_hand.L1(width)),
        lambda: by_hand.L4(width),
        lambda: ChannelsLast(nn.BatchNorm1d(width)),
        lambda: ChannelsLast(nn.GroupNorm(2, width)),
        lambda: Affine(width, 0),
    ]
    return rng.choice(makers)()


def over_tokens(rng: random.Random) -> tuple[nn.Module, Tensor]:
    """Return a network over ids or features (2, 6[, 5]) and an example."""
    width, ids = rng.choice([8, 12]), rng.random() < 0.5
    layers: list[nn.Module] = [nn.Embedding(30, width) if ids else nn.Linear(5, width)]
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(["attention", "feed", "norm", "conv"])
        if kind == "attention":
            layers.append(Residual(nn.Sequential(_token_norm(width, rng), Attention(width, 2))))
        elif kind == "feed":
            wide = [nn.Linear(width, 2 * width), rng.choice([nn.GELU, nn.ReLU, nn.SiLU])(), nn.Linear(2 * width, width)]
            layers.append(Residual(nn.Sequential(_token_norm(width, rng), *wide, Affine(width, 0))))
        elif kind == "norm":
            layers += [nn.Linear(width, width), _token_norm(width, rng), nn.Tanh()]
        else:
            layers.append(ChannelsLast(nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width))))
    layers += [_token_norm(width, rng), nn.Linear(width, 4)]
    return nn.Sequential(*layers), torch.randint(0, 30, (2, 6)) if ids else torch.randn(2, 6, 5)


def merging() -> tuple[nn.Module, torch.Tensor]:
    """Branches that become one Conv, and an input: only unrounded constants explain its numbers."""
    torch.manual_seed(0)
    model = Parallel(6).eval()
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    return model, torch.randn(1, 6, 7, 7)


def draw(seed: int, kind: Callable[[random.Random], tuple[nn.Module, Tensor]]) -> tuple[nn.Module, Tensor]:
    """Return a network in evaluation mode with norms that do something, and its example."""
    torch.manual_seed(seed)
    model, example = kind(random.Random(seed))
    for module in model.modules():
        mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(var, Tensor):
            mean.normal_()
            var.uniform_(0.5, 2.0)
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
            if module.weight is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5)
            if getattr(module, "bias", None) is not None:
                nn.init.normal_(module.bias, std=0.5)
    return model.eval(), example
