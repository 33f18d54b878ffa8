"""A RepVGG-type network, deployed with the multi-branch structure it was trained with.

Shows: each block adds a 3x3 convolution, a 1x1 convolution and an identity, each with a BatchNorm. All three are
linear, so they are one 3x3 convolution. The authors merge them with a conversion script of their own; here the export
does, from the graph.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of repvgg.safetensors
(``normdeploy train export/repvgg.toml`` makes it).

Source: X. Ding et al., RepVGG: Making VGG-style ConvNets Great Again, 2021, figure 4.
"""

from __future__ import annotations

from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class RepVGGBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.dense = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.pointwise = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
        )
        self.identity = nn.BatchNorm2d(channels) if stride == 1 and channels_in == channels else None
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x) + self.pointwise(x)
        if self.identity is not None:
            y = y + self.identity(x)
        return self.relu(y)


class RepVGG(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            RepVGGBlock(1, 16),
            RepVGGBlock(16, 16),
            RepVGGBlock(16, 32, 2),
            RepVGGBlock(32, 32),
            RepVGGBlock(32, 64, 2),
            RepVGGBlock(64, 64),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
