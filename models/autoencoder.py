"""A convolutional autoencoder with transposed convolutions.

Shows: BatchNorm behind ``ConvTranspose2d``, whose weight has its output channels on another axis (and another order
under groups) than ``Conv2d``. All normalizations fold.

Data: scikit-learn's 1,797 handwritten digits, 8x8, reconstructed from 16 numbers each; the accuracy is R^2, the share
of the pixels' variance that the reconstruction explains. Result and time: see the metadata of autoencoder.safetensors
(``normdeploy train export/autoencoder.toml`` makes it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class Autoencoder(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 1, 8, 8) pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 16),
        )
        self.widen = nn.Sequential(nn.Linear(16, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(32, 32, 3, stride=2, padding=1, output_padding=1, groups=4, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        grid = self.widen(code).view(-1, 32, 2, 2)
        return torch.sigmoid(self.decoder(grid))


def data() -> Splits:
    """Return the digits as their own targets."""
    return digits(targets="image")
