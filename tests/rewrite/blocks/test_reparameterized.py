"""Re-parameterizable blocks: each becomes the one convolution that its authors merge it into by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn


@pytest.fixture(scope="module")
def fold(fold):
    return partial(fold, dynamic_shapes={})


def conv_bn(ins, outs, k=3, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(ins, outs, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(outs))


class RepVGG(nn.Module):
    """RepVGG (arXiv 2101.03697): 3x3, 1x1 and identity, a BatchNorm each."""

    def __init__(self, ins, outs, stride=1, groups=1):
        super().__init__()
        self.dense, self.point = conv_bn(ins, outs, 3, stride, groups), conv_bn(ins, outs, 1, stride, groups)
        self.identity = nn.BatchNorm2d(ins) if stride == 1 and ins == outs else None

    def forward(self, x):
        total = self.dense(x) + self.point(x)
        return torch.relu(total if self.identity is None else total + self.identity(x))


def test_repvgg(fold):
    net = nn.Sequential(RepVGG(3, 8, 2), RepVGG(8, 8), RepVGG(8, 8, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    folded = fold(net.append(nn.Linear(8, 3)), torch.randn(2, 3, 16, 16))
    assert folded.operators["Conv"] == 3
    assert folded.operators["Add"] == 0
    assert not folded.passes
    assert set(folded.actions().values()) == {"merged"}  # each norm with its branch: none moves by itself


def test_branches_stay_apart_that_only_pay_while_their_norms_are_there(fold):
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.high = (
                nn.Sequential(nn.Conv2d(2, 2, size, padding=pad, bias=False), nn.BatchNorm2d(2))
                for size, pad in (((1, 5), (0, 2)), ((5, 1), (2, 0)))
            )

        def forward(self, x):
            return torch.relu(self.wide(x) + self.high(x))

    folded = fold(Cross(), torch.randn(2, 2, 12, 12), kept={"node_add"})
    # 12 + 2 * 5 each and 12 for the sum, against 12 + 2 * 25: with 12 more for each norm they would be one
    assert dict(folded.operators) == {"Conv": 2, "Add": 1, "Relu": 1}
    assert set(folded.actions().values()) == {"folded", "kept"}
    (kept,) = folded.ledger.kept
    assert kept.kind == "parallel branches"


class MobileOne(nn.Module):
    """MobileOne (arXiv 2206.04040): several k x k branches, a 1x1 branch for depthwise, and a skip."""

    def __init__(self, ins, outs, k=3, stride=1, groups=1, branches=3):
        super().__init__()
        self.skip = nn.BatchNorm2d(ins) if ins == outs and stride == 1 else None
        self.scale = conv_bn(ins, outs, 1, stride, groups) if k > 1 else None
        self.branches = nn.ModuleList(conv_bn(ins, outs, k, stride, groups) for _ in range(branches))

    def forward(self, x):
        total = 0 if self.scale is None else self.scale(x)
        if self.skip is not None:
            total = total + self.skip(x)
        for branch in self.branches:
            total = total + branch(x)
        return torch.relu(total)


def test_mobileone(fold):
    net = nn.Sequential(
        MobileOne(3, 8, 3, 2, branches=1), MobileOne(8, 8, 3, groups=8), MobileOne(8, 8, 1), MobileOne(8, 12, 1)
    )
    folded = fold(net, torch.randn(2, 3, 12, 12))
    assert dict(folded.operators) == {"Conv": 4, "Relu": 4}
    assert folded.actions()["2.skip"] == "merged"


class RepDepthwise(nn.Module):
    """RepViT (arXiv 2307.09283): a depthwise 3x3, a depthwise 1x1 and the input, one more norm behind their sum."""

    def __init__(self, dim):
        super().__init__()
        self.conv = conv_bn(dim, dim, 3, 1, dim)
        self.conv1 = nn.Conv2d(dim, dim, 1, groups=dim)
        self.bn = nn.BatchNorm2d(dim)

    def forward(self, x):
        return self.bn(self.conv(x) + self.conv1(x) + x)


class RepViT(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.token_mixer = RepDepthwise(dim)
        self.channel_mixer = nn.Sequential(conv_bn(dim, 2 * dim, 1), nn.GELU(), conv_bn(2 * dim, dim, 1))

    def forward(self, x):
        x = self.token_mixer(x)
        return x + self.channel_mixer(x)


def test_repvit(fold):
    folded = fold(nn.Sequential(RepViT(8), RepViT(8)), torch.randn(2, 8, 10, 10))
    assert folded.operators["Conv"] == 6
    assert folded.operators["Add"] == 2
    assert not folded.passes


class RepMixer(nn.Module):
    """FastViT (arXiv 2303.14189): x + scale * (mixer(x) - norm(x)) is one depthwise convolution."""

    def __init__(self, dim):
        super().__init__()
        self.norm, self.mixer = nn.BatchNorm2d(dim), Mixer(dim)
        self.gamma = nn.Parameter(torch.ones(dim, 1, 1))

    def forward(self, x):
        return x + self.gamma * (self.mixer(x) - self.norm(x))


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.skip, self.scale, self.conv = (
            nn.BatchNorm2d(dim),
            conv_bn(dim, dim, 1, 1, dim),
            conv_bn(dim, dim, 3, 1, dim),
        )

    def forward(self, x):
        return self.skip(x) + self.scale(x) + self.conv(x)


class FastViT(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.token_mixer = RepMixer(dim)
        self.local = conv_bn(dim, dim, 7, 1, dim)
        self.fc1, self.fc2 = nn.Conv2d(dim, 2 * dim, 1), nn.Conv2d(2 * dim, dim, 1)
        self.gamma = nn.Parameter(torch.ones(dim, 1, 1))

    def forward(self, x):
        x = self.token_mixer(x)
        return x + self.gamma * self.fc2(nn.functional.gelu(self.fc1(self.local(x))))


def test_fastvit(fold):
    folded = fold(FastViT(8), torch.randn(2, 8, 10, 10))
    # the mixer is one convolution; the 7x7 stays apart from the 1x1, whose product would be dense
    assert folded.operators["Conv"] == 4
    assert folded.operators["Add"] == 1
    assert not folded.passes


class DiverseBranch(nn.Module):
    """Diverse branch block (arXiv 2103.13425), its 1x1-kxk chain unpadded."""

    def __init__(self, ins, outs):
        super().__init__()
        self.origin, self.point = conv_bn(ins, outs, 3), conv_bn(ins, outs, 1)
        self.first, self.second = nn.Conv2d(ins, ins, 1, bias=False), conv_bn(ins, outs, 3)
        self.before = nn.Conv2d(ins, outs, 1, bias=False)
        self.pool, self.after = nn.AvgPool2d(3, 1, 1), nn.BatchNorm2d(outs)

    def forward(self, x):
        return self.origin(x) + self.point(x) + self.second(self.first(x)) + self.after(self.pool(self.before(x)))


def test_diverse_branches(fold):
    folded = fold(nn.Sequential(DiverseBranch(4, 6), nn.ReLU(), DiverseBranch(6, 6)), torch.randn(2, 4, 9, 9))
    assert dict(folded.operators) == {"Conv": 2, "Relu": 1}


class BNAndPad(nn.Module):
    """A norm, padded with what it makes of zeros: the border is written by slice assignment, as published."""

    def __init__(self, pixels, dim):
        super().__init__()
        self.bn, self.pixels = nn.BatchNorm2d(dim), pixels

    def forward(self, x):
        y = self.bn(x)
        if self.pixels == 0:
            return y
        deviation = torch.sqrt(self.bn.running_var + self.bn.eps)
        value = self.bn.bias.detach() - self.bn.running_mean * self.bn.weight.detach() / deviation
        y, value = nn.functional.pad(y, [self.pixels] * 4), value.view(1, -1, 1, 1)
        y[:, :, 0 : self.pixels, :] = value
        y[:, :, -self.pixels :, :] = value
        y[:, :, :, 0 : self.pixels] = value
        y[:, :, :, -self.pixels :] = value
        return y


class PublishedDiverseBranch(nn.Module):
    """Diverse branch block as its authors publish it: k x k, 1x1, 1x1 then average, 1x1 then k x k, each with norms."""

    def __init__(self, ins, outs, k=3, stride=1, groups=1):
        super().__init__()
        self.origin, self.point = conv_bn(ins, outs, k, stride, groups), conv_bn(ins, outs, 1, stride, groups)
        self.average = nn.Sequential(
            nn.Conv2d(ins, outs, 1, groups=groups, bias=False), BNAndPad(k // 2, outs), nn.AvgPool2d(k, stride),
            nn.BatchNorm2d(outs),
        )  # fmt: skip
        self.chain = nn.Sequential(
            nn.Conv2d(ins, ins, 1, groups=groups, bias=False), BNAndPad(k // 2, ins),
            nn.Conv2d(ins, outs, k, stride, groups=groups, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip

    def forward(self, x):
        return self.origin(x) + self.point(x) + self.average(x) + self.chain(x)


@pytest.mark.parametrize("options", [{"k": 5}, {"stride": 2}, {"groups": 2}])
def test_diverse_branches_as_published(fold, options):
    folded = fold(nn.Sequential(PublishedDiverseBranch(4, 6, **options), nn.ReLU()), torch.randn(2, 4, 13, 11))
    assert dict(folded.operators) == {"Conv": 1, "Relu": 1}
    assert not [row for row in folded.ledger if row.action == "kept"]


def test_diverse_branches_as_published_in_a_row(fold):
    net = nn.Sequential(PublishedDiverseBranch(4, 6), nn.ReLU(), PublishedDiverseBranch(6, 6))
    folded = fold(net, torch.randn(2, 4, 13, 11))
    assert dict(folded.operators) == {"Conv": 2, "Relu": 1}
    assert not [row for row in folded.ledger if row.action == "kept"]


def test_diverse_branches_as_published_for_any_batch(fold):
    batch = ({0: torch.export.Dim("batch")},)
    folded = fold(PublishedDiverseBranch(4, 6), torch.randn(2, 4, 13, 11), dynamic_shapes=batch)
    assert dict(folded.operators) == {"Conv": 1}


class DilatedReparam(nn.Module):
    """UniRepLKNet (arXiv 2311.15599): a large depthwise kernel, and smaller dilated ones that lie inside it."""

    def __init__(self, dim):
        super().__init__()
        self.large = conv_bn(dim, dim, 13, 1, dim)
        self.dilated = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(dim, dim, k, padding=rate * (k - 1) // 2, dilation=rate, groups=dim, bias=False),
                nn.BatchNorm2d(dim),
            )
            for k, rate in ((5, 1), (7, 2), (3, 3), (3, 4), (3, 5))
        )

    def forward(self, x):
        total = self.large(x)
        for branch in self.dilated:
            total = total + branch(x)
        return total


def test_dilated_branches(fold):
    folded = fold(nn.Sequential(DilatedReparam(4), nn.GELU(), DilatedReparam(4)), torch.randn(2, 4, 15, 16))
    assert dict(folded.operators) == {"Conv": 2, "Gelu": 1}


class Asymmetric(nn.Module):
    """ACNet (arXiv 1908.03930): a square, a vertical and a horizontal kernel."""

    def __init__(self, dim):
        super().__init__()
        self.square = conv_bn(dim, dim, 3)
        self.vertical = nn.Sequential(nn.Conv2d(dim, dim, (3, 1), padding=(1, 0), bias=False), nn.BatchNorm2d(dim))
        self.horizontal = nn.Sequential(nn.Conv2d(dim, dim, (1, 3), padding=(0, 1), bias=False), nn.BatchNorm2d(dim))

    def forward(self, x):
        return self.square(x) + self.vertical(x) + self.horizontal(x)


def test_asymmetric_convolutions(fold):
    assert dict(fold(Asymmetric(6), torch.randn(2, 6, 9, 9)).operators) == {"Conv": 1}
