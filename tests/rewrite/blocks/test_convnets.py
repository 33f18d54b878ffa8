"""Convolutional blocks of published structure: everything folds but a pre-activation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def conv_bn(ins, outs, k=3, stride=1, groups=1, dilation=1):
    conv = nn.Conv2d(ins, outs, k, stride, dilation * (k // 2), dilation, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs))


class Residual(nn.Module):
    """Deep residual learning (arXiv 1512.03385): basic or bottleneck, a projection shortcut where shapes change."""

    def __init__(self, ins, outs, stride=1, bottleneck=False, groups=1, squeeze=False):
        super().__init__()
        if bottleneck:
            parts = [conv_bn(ins, outs, 1), nn.ReLU(), conv_bn(outs, outs, 3, stride, groups), nn.ReLU()]
            parts += [SqueezeExcite(outs, 2), conv_bn(outs, outs, 1)] if squeeze else [conv_bn(outs, outs, 1)]
        else:
            parts = [conv_bn(ins, outs, 3, stride), nn.ReLU(), conv_bn(outs, outs)]
        self.body = nn.Sequential(*parts)
        self.shortcut = conv_bn(ins, outs, 1, stride) if stride > 1 or ins != outs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (arXiv 1709.01507)."""

    def __init__(self, channels, inner, act=nn.ReLU, gate=nn.Sigmoid):
        super().__init__()
        self.reduce, self.act = nn.Conv2d(channels, inner, 1), act()
        self.expand, self.gate = nn.Conv2d(inner, channels, 1), gate()

    def forward(self, x):
        s = functional.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.expand(self.act(self.reduce(s))))


def test_resnet(fold):
    stem = [conv_bn(3, 8, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    body = [Residual(8, 8), Residual(8, 12, 2), Residual(12, 12, bottleneck=True), Residual(12, 16, 2, bottleneck=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    folded = fold(nn.Sequential(*stem, *body, *head), torch.randn(2, 3, 32, 32))
    assert not folded.passes
    assert set(folded.actions().values()) == {"folded"}


class PreActivation(nn.Module):
    """Identity mappings in deep residual networks (arXiv 1603.05027)."""

    def __init__(self, ins, outs, stride=1):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(ins), nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(outs), nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(ins, outs, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x):
        out = torch.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(torch.relu(self.bn2(self.conv1(out)))) + skip


def test_resnet_v2_folds_through_its_activations(fold):
    """relu(s x + t) = s relu(x + t / s) for s > 0: the scale goes on, the shift to whatever writes the stream."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), PreActivation(8, 8), PreActivation(8, 12, 2), nn.BatchNorm2d(12))
    net.append(nn.ReLU())
    folded = fold(net, torch.randn(2, 3, 12, 12))
    assert not folded.passes


class DenseLayer(nn.Module):
    """Densely connected convolutional networks (arXiv 1608.06993)."""

    def __init__(self, ins, growth=4):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(ins), nn.Conv2d(ins, 8, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, growth, 3, padding=1, bias=False)

    def forward(self, x):
        out = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.norm2(out)))], 1)


def test_densenet_keeps_its_concatenated_pre_activations_and_says_why(fold):
    transition = [nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2, 2)]
    layers = [conv_bn(3, 8), nn.ReLU(), DenseLayer(8), DenseLayer(12), *transition, DenseLayer(8), nn.BatchNorm2d(12)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))
    folded = fold(net, torch.randn(2, 3, 12, 12), kept={"2.norm1", "3.norm1", "4", "8.norm1"})
    assert all("Relu" in row.reason for row in folded.ledger.kept)


class InvertedResidual(nn.Module):
    """MobileNetV2 (arXiv 1801.04381), V3 (1905.02244) and EfficientNet (1905.11946): expand, depthwise, SE, project."""

    def __init__(self, ins, outs, stride=1, act=nn.ReLU6, squeeze=None):
        super().__init__()
        inner = ins * 3
        parts = [conv_bn(ins, inner, 1), act(), conv_bn(inner, inner, 3, stride, inner), act()]
        if squeeze is not None:
            parts.append(squeeze(inner))
        self.body = nn.Sequential(*parts, conv_bn(inner, outs, 1))
        self.residual = stride == 1 and ins == outs

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


def test_mobilenet(fold):
    def hard(channels):
        return SqueezeExcite(channels, 4, nn.ReLU, nn.Hardsigmoid)

    net = nn.Sequential(
        conv_bn(3, 8, 3, 2),
        nn.Hardswish(),
        InvertedResidual(8, 8),
        InvertedResidual(8, 12, 2),
        InvertedResidual(12, 12, act=nn.Hardswish, squeeze=hard),
        conv_bn(12, 24, 1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.Hardswish(),
        nn.Dropout(),
        nn.Linear(8, 3),
    )
    folded = fold(net, torch.randn(2, 3, 16, 16), dynamic_shapes={})
    assert not folded.passes


def test_efficientnet(fold):
    def squeeze(channels):
        return SqueezeExcite(channels, 2, nn.SiLU)

    blocks = [
        InvertedResidual(8, 8, act=nn.SiLU, squeeze=squeeze),
        InvertedResidual(8, 12, 2, nn.SiLU, squeeze),
    ]
    head = [conv_bn(12, 16, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)]
    folded = fold(
        nn.Sequential(conv_bn(3, 8, 3, 2), nn.SiLU(), *blocks, *head), torch.randn(2, 3, 16, 16), dynamic_shapes={}
    )
    assert not folded.passes
    others = [(row.where, row.kind, row.action) for row in folded.ledger if row.action != "folded"]
    assert others == [("4.0", "operators in a row", "merged")]  # nothing stands between the last block and the head


def test_regnet(fold):
    net = nn.Sequential(
        conv_bn(3, 8, 3, 2),
        nn.ReLU(),
        Residual(8, 12, 2, bottleneck=True, groups=3, squeeze=True),
        Residual(12, 12, 1, bottleneck=True, groups=3, squeeze=True),
    )
    assert not fold(net, torch.randn(2, 3, 16, 16), dynamic_shapes={}).passes


class Fuse(nn.Module):
    """High-resolution networks (arXiv 1908.07919): every resolution gets the sum of all, up- or downsampled."""

    def __init__(self, high, low):
        super().__init__()
        self.high, self.low = Residual(high, high), Residual(low, low)
        self.up = nn.Sequential(conv_bn(low, high, 1), nn.Upsample(scale_factor=2, mode="nearest"))
        self.down = conv_bn(high, low, 3, 2)

    def forward(self, high, low):
        high, low = self.high(high), self.low(low)
        return torch.relu(high + self.up(low)), torch.relu(low + self.down(high))


class HighResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.transition = conv_bn(3, 8, 3, 2), conv_bn(8, 12, 3, 2)
        self.stage, self.last = Fuse(8, 12), Fuse(8, 12)
        self.head = conv_bn(20, 16, 1)

    def forward(self, x):
        high = torch.relu(self.stem(x))
        high, low = self.last(*self.stage(high, torch.relu(self.transition(high))))
        low = functional.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(torch.cat([high, low], 1))


def test_hrnet(fold):
    folded = fold(HighResolution(), torch.randn(2, 3, 16, 16))
    assert not folded.passes
    assert set(folded.actions().values()) == {"folded"}


class Tree(nn.Module):
    """Deep layer aggregation (arXiv 1707.06484): a root joins its children by a 1x1 convolution, residual or not."""

    def __init__(self, ins, outs):
        super().__init__()
        self.left, self.right = Residual(ins, outs, 2), Residual(outs, outs)
        self.project = conv_bn(ins, outs, 1)
        self.root = conv_bn(3 * outs, outs, 1)

    def forward(self, x):
        down = self.project(functional.max_pool2d(x, 2))
        left = self.left(x)
        right = self.right(left)
        return torch.relu(self.root(torch.cat([right, left, down], 1)) + right)


def test_dla(fold):
    net = nn.Sequential(conv_bn(3, 8, 7), nn.ReLU(), Tree(8, 12), Tree(12, 16))
    folded = fold(net, torch.randn(2, 3, 16, 16), dynamic_shapes={})
    assert not folded.passes
    assert set(folded.actions().values()) == {"folded"}


class Standardized(nn.Conv2d):
    """Weight standardization (arXiv 1903.10520)."""

    def forward(self, x):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        deviation = self.weight.var((1, 2, 3), keepdim=True, unbiased=False)
        return functional.conv2d(x, (self.weight - mean) * torch.rsqrt(deviation + 2.0**-20), self.bias, 1, 1)


def test_normalized_weights_are_evaluated_so_that_the_norm_behind_them_folds(fold):
    parametrizations = nn.utils.parametrizations
    net = nn.Sequential(
        Standardized(3, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Conv2d(32, 40, 3, padding=1)),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Conv2d(40, 8, 3, bias=False)),
        nn.BatchNorm2d(8),
    )
    folded = fold(net, torch.randn(2, 3, 8, 8))
    assert dict(folded.operators) == {"Conv": 3, "Relu": 2}


class Neck(nn.Module):
    """A bag of tricks for re-identification (arXiv 1903.07071): a BatchNorm before a classifier without bias."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 8), nn.ReLU())
        self.neck, self.classifier = nn.BatchNorm1d(8), nn.Linear(8, 5, bias=False)

    def forward(self, x):
        return self.classifier(self.neck(functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1)))


def test_a_norm_before_a_classifier(fold):
    folded = fold(Neck(), torch.randn(2, 3, 8, 8))
    assert folded.actions()["neck"] == "folded"
    assert not folded.passes


class FlatNeck(nn.Module):
    """The same where the positions are flattened instead of pooled."""

    def __init__(self):
        super().__init__()
        self.norm, self.classifier = nn.BatchNorm2d(3), nn.Linear(3 * 16, 5)

    def forward(self, x):
        return self.classifier(self.norm(torch.sigmoid(x)).flatten(1))


def test_a_norm_before_flattening_and_a_classifier(fold):
    folded = fold(FlatNeck(), torch.randn(2, 3, 4, 4))
    assert folded.actions() == {"norm": "folded"}
    assert not folded.passes
