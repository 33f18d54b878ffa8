"""A LeNet with a hand-written BatchNorm that takes its mode from whether gradients are recorded (convention B4).

Shows: ``.eval()`` has no say in this normalization: with gradients on it uses batch statistics. Its running tensors
are plain attributes that ``state_dict()`` loses, its scale and shift have the shapes (1, C) and (1, C, 1, 1), and the
variance it keeps is the biased one. All four normalizations fold into the convolution or linear layer in front.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of lenet.safetensors
(``normdeploy train export/lenet.toml`` makes it).

Source: the network is Y. LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998, cut to 8x8
pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


def normalize_batch(
    x: Tensor, gamma: Tensor, beta: Tensor, moving_mean: Tensor, moving_var: Tensor, eps: float, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized batch and the new moving averages; evaluation is when gradients are off."""
    if not torch.is_grad_enabled():
        standardized = (x - moving_mean) / torch.sqrt(moving_var + eps)
    else:
        if x.dim() == 2:
            mean = x.mean(dim=0, keepdim=True)
            var = ((x - mean) ** 2).mean(dim=0, keepdim=True)
        else:
            mean = x.mean(dim=(0, 2, 3), keepdim=True)
            var = ((x - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
        standardized = (x - mean) / torch.sqrt(var + eps)
        moving_mean = (1 - momentum) * moving_mean + momentum * mean
        moving_var = (1 - momentum) * moving_var + momentum * var
    return gamma * standardized + beta, moving_mean.detach(), moving_var.detach()


class GradientModeBatchNorm(nn.Module):
    """For (N, C) with ``dims=2`` or (N, C, H, W) with ``dims=4``."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        shape = (1, channels) if dims == 2 else (1, channels, 1, 1)
        self.gamma = nn.Parameter(torch.ones(shape))
        self.beta = nn.Parameter(torch.zeros(shape))
        self.moving_mean = torch.zeros(shape)
        self.moving_var = torch.ones(shape)

    def forward(self, x: Tensor) -> Tensor:
        y, self.moving_mean, self.moving_var = normalize_batch(
            x, self.gamma, self.beta, self.moving_mean, self.moving_var, eps=1e-5, momentum=0.1
        )
        return y


class LeNet(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2),
            GradientModeBatchNorm(12, 4),
            nn.Sigmoid(),
            nn.AvgPool2d(2),
            nn.Conv2d(12, 32, 3, padding=1),
            GradientModeBatchNorm(32, 4),
            nn.Sigmoid(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 120),
            GradientModeBatchNorm(120, 2),
            nn.Sigmoid(),
            nn.Linear(120, 84),
            GradientModeBatchNorm(84, 2),
            nn.Sigmoid(),
            nn.Linear(84, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
