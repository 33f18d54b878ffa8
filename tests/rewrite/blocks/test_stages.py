"""Whole stages of published networks: stems, attention, heads, and convolutions of one and three dimensions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional


def conv_bn(ins, outs, k=3, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(ins, outs, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(outs))


class Squeeze(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.expand(torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


class Depthwise(nn.Module):
    """RepViT's token mixer (arXiv 2307.09283)."""

    def __init__(self, dim):
        super().__init__()
        self.conv, self.conv1, self.bn = conv_bn(dim, dim, 3, 1, dim), nn.Conv2d(dim, dim, 1, groups=dim), None
        self.bn = nn.BatchNorm2d(dim)

    def forward(self, x):
        return self.bn(self.conv(x) + self.conv1(x) + x)


class Mix(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return x + self.parts(x)


class Distilled(nn.Module):
    """A BatchNorm before each of two classifiers, whose results are averaged."""

    def __init__(self, dim, classes):
        super().__init__()
        self.head = nn.Sequential(nn.BatchNorm1d(dim), nn.Linear(dim, classes))
        self.dist = nn.Sequential(nn.BatchNorm1d(dim), nn.Linear(dim, classes))

    def forward(self, x):
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return (self.head(x) + self.dist(x)) / 2


def test_repvit_with_squeeze_downsampling_and_two_heads(fold):
    def mlp(dim):
        return Mix(conv_bn(dim, 2 * dim, 1), nn.GELU(), conv_bn(2 * dim, dim, 1))

    net = nn.Sequential(
        conv_bn(3, 4, 3, 2), nn.GELU(), conv_bn(4, 8, 3, 2),
        Depthwise(8), Squeeze(8), mlp(8),
        conv_bn(8, 8, 3, 2, 8), nn.Identity(), conv_bn(8, 12, 1), mlp(12),
        Distilled(12, 5),
    )  # fmt: skip
    folded = fold(net, torch.randn(2, 3, 32, 32))
    assert not folded.passes
    assert set(folded.actions().values()) == {"folded", "merged"}
    # both heads read one value: two linears in parallel are one
    assert folded.operators["Gemm"] == 1


class Position(nn.Module):
    """FastViT's conditional position encoding (arXiv 2303.14189): x + depthwise 7x7, then BatchNorm and attention."""

    def __init__(self, dim, bias, heads=2):
        super().__init__()
        self.heads = heads
        self.position = nn.Conv2d(dim, dim, 7, 1, 3, groups=dim)
        self.norm = nn.BatchNorm2d(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=bias), nn.Linear(dim, dim)
        self.scale_1, self.scale_2 = nn.Parameter(torch.ones(dim, 1, 1)), nn.Parameter(torch.ones(dim, 1, 1))
        self.local, self.fc1 = conv_bn(dim, dim, 7, 1, dim), nn.Conv2d(dim, 2 * dim, 1)
        self.fc2 = nn.Conv2d(2 * dim, dim, 1)

    def attention(self, x):
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).reshape(b, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q * 0.5 @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, h * w, c)).transpose(1, 2).reshape(b, c, h, w)

    def forward(self, x):
        x = x + self.position(x)
        x = x + self.scale_1 * self.attention(self.norm(x))
        return x + self.scale_2 * self.fc2(functional.gelu(self.fc1(self.local(x))))


@pytest.mark.parametrize("bias", [True, False])
def test_fastvit_with_attention(fold, bias):
    """Without a bias on queries, keys and values, the shift goes into the stream and is taken off by the projection."""
    net = nn.Sequential(conv_bn(3, 8, 3, 2), nn.GELU(), Position(8, bias), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    folded = fold(net.append(nn.Linear(8, 3)), torch.randn(2, 3, 16, 16))
    assert not folded.passes
    norm = next(row for row in folded.ledger if row.where == "2.norm")
    assert norm.into == ("2.qkv" if bias else "2.position, 2.qkv")


class ClassAttention(nn.Module):
    """CaiT's last layers (arXiv 2103.17239): only the class token asks, and only it is scaled."""

    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.proj, self.fc1, self.fc2 = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def attend(self, x):
        b, _, c = x.shape

        def split(value):
            return value.reshape(b, -1, self.heads, c // self.heads).transpose(1, 2)

        q, k, v = split(self.q(x[:, :1])) * 0.5, split(self.k(x)), split(self.v(x))
        return self.proj(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(b, 1, c))

    def forward(self, token, x):
        token = token + self.gamma_1 * self.attend(self.norm1(torch.cat([token, x], 1)))
        return token + self.gamma_2 * self.fc2(functional.gelu(self.fc1(self.norm2(token))))


def test_class_attention(fold):
    folded = fold(ClassAttention(8), torch.randn(2, 1, 8), torch.randn(2, 5, 8))
    assert not folded.passes
    assert folded.operators["LayerNormalization"] == 2


class Downsample(nn.Module):
    """ConvNeXt between its stages: a LayerNorm over the channels of images, then a strided convolution."""

    def __init__(self, ins, outs):
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(ins, eps=1e-6), nn.Conv2d(ins, outs, 2, 2)

    def forward(self, x):
        return self.conv(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def test_convnext_stem_and_downsampling(fold):
    folded = fold(nn.Sequential(nn.Conv2d(3, 8, 4, 4), Downsample(8, 12)), torch.randn(2, 3, 16, 16))
    assert not folded.passes
    assert dict(folded.operators) == {"Conv": 2, "Transpose": 2, "LayerNormalization": 1}


@pytest.mark.parametrize("rank", [1, 3])
def test_a_residual_network_of_signals_and_of_volumes(fold, rank):
    conv, norm = {1: (nn.Conv1d, nn.BatchNorm1d), 3: (nn.Conv3d, nn.BatchNorm3d)}[rank]
    up = {1: nn.ConvTranspose1d, 3: nn.ConvTranspose3d}[rank]

    def part(ins, outs, k=3, stride=1, groups=1):
        return nn.Sequential(conv(ins, outs, k, stride, k // 2, groups=groups, bias=False), norm(outs))

    class Block(nn.Module):
        def __init__(self, ins, outs, stride):
            super().__init__()
            self.body = nn.Sequential(part(ins, outs, 3, stride), nn.ReLU(), part(outs, outs, 3, 1, 2), nn.ReLU())
            self.last, self.skip = part(outs, outs, 1), part(ins, outs, 1, stride)

        def forward(self, x):
            return torch.relu(self.last(self.body(x)) + self.skip(x))

    upper = nn.Sequential(up(8, 8, 2, 2, groups=2, bias=False), norm(8), nn.ReLU())
    net = nn.Sequential(part(2, 4), nn.ReLU(), Block(4, 8, 2), Block(8, 8, 1), upper)
    folded = fold(net, torch.randn(2, 2, *[8] * rank))
    assert not folded.passes
    assert set(folded.actions().values()) == {"folded"}
