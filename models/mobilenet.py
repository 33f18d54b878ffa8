"""An inverted-residual network of depthwise-separable convolutions.

Shows: BatchNorm behind depthwise (grouped) and pointwise convolutions, with ReLU6 between them and none behind the
projection. All fold, whatever the number of groups.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of mobilenet.safetensors
(``normdeploy train export/mobilenet.toml`` makes it).

Source: M. Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018, figure 4d.
"""

from __future__ import annotations

from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class InvertedResidual(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int = 1, expansion: int = 4) -> None:
        super().__init__()
        wide = channels_in * expansion
        self.keeps_shape = stride == 1 and channels_in == channels
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return x + y if self.keeps_shape else y


class MobileNet(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.blocks = nn.Sequential(
            InvertedResidual(16, 16), InvertedResidual(16, 24, 2), InvertedResidual(24, 24), InvertedResidual(24, 32, 2)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
