"""A convolutional digit classifier with stock BatchNorm: the first thing to deploy.

Shows: every ``nn.BatchNorm2d`` behind a convolution and the ``nn.BatchNorm1d`` behind a linear layer fold to nothing.
The max pooling and the flattening between them change nothing about that.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of digits_cnn.safetensors
(``normdeploy train export/digits_cnn.toml`` makes it).
"""

from __future__ import annotations

from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class DigitsCNN(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(256, 64, bias=False),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
