"""A convolutional classifier with a hand-written BatchNorm that works on a view (N, C, -1) (convention B5).

Shows: the normalization goes through a view and back, computes the variance as E[x^2] - E[x]^2, keeps the biased one,
and reassigns its buffers at each update; one of the three has neither scale nor shift (``affine=False``). All three
fold into the convolutions.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of cnn_view_norm.safetensors
(``normdeploy train export/cnn_view_norm.toml`` makes it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class ViewBatchNorm(nn.Module):
    """BatchNorm of (N, C, *) through a view to three axes."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        if affine:
            self.scale = nn.Parameter(torch.ones(channels))
            self.shift = nn.Parameter(torch.zeros(channels))
        if track_running_stats:
            self.register_buffer("running_mean", torch.zeros(channels))
            self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(shape[0], self.channels, -1)
        if self.training or not self.track_running_stats:
            mean = x.mean(dim=[0, 2])
            var = (x * x).mean(dim=[0, 2]) - mean**2
            if self.training and self.track_running_stats:
                self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean.detach()
                self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var.detach()
        else:
            mean, var = self.running_mean, self.running_var
        x = (x - mean.view(1, -1, 1)) / torch.sqrt(var + self.eps).view(1, -1, 1)
        if self.affine:
            x = self.scale.view(1, -1, 1) * x + self.shift.view(1, -1, 1)
        return x.view(shape)


class ViewNormCNN(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), ViewBatchNorm(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, stride=2, padding=1), ViewBatchNorm(32, affine=False)
        self.conv3, self.norm3 = nn.Conv2d(32, 64, 3, stride=2, padding=1), ViewBatchNorm(64)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.conv3(x)))
        return self.head(x.flatten(1))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
