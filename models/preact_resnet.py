"""A residual network with the normalization in front of activation and convolution (convention B6).

Shows: that nothing has to stay. In a pre-activation block the first BatchNorm is fed by a sum that also goes around
the block, and is followed by a ReLU. For s > 0, relu(s x + t) = s relu(x + t / s): what writes the sum carries the
shift for all who read it, and the convolution behind the ReLU takes the scale. Where readers ask for both signs of
one channel, or a scale is so small that the sum would have to carry too much, the BatchNorm stays, and the ledger
says why.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of preact_resnet.safetensors
(``normdeploy train export/preact_resnet.toml`` makes it).

Source: K. He et al., Identity Mappings in Deep Residual Networks, 2016, figure 1b.
"""

from __future__ import annotations

from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class PreActivationBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.relu(self.bn1(x)))
        return self.conv2(self.relu(self.bn2(y))) + self.shortcut(x)


class PreActivationResNet(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            PreActivationBlock(16, 16), PreActivationBlock(16, 32, 2), PreActivationBlock(32, 64, 2)
        )
        self.norm = nn.BatchNorm2d(64)
        self.head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x))))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
