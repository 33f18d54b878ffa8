"""A small residual network with torch's BatchNorm (convention B6).

Shows: every normalization stands right behind a convolution, also on the projecting shortcuts, so that nothing of it
is left after
folding: what remains is convolutions, additions and ReLUs.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of resnet.safetensors
(``normdeploy train export/resnet.toml`` makes it).

Source: K. He et al., Deep Residual Learning for Image Recognition, 2016, figure 2.
"""

from __future__ import annotations

from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(ResidualBlock(16, 16), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
