"""A multilayer perceptron whose BatchNorm is a plain Python class (convention B1).

Shows: a normalization that ``nn.Module`` cannot see. Its tensors are plain attributes, its mode is a plain
``training`` attribute, it divides by the *unbiased* variance, and its running tensors change shape from (C,) to (1, C)
at the first update. It is trained, saved, switched to evaluation, folded into the linear layers in front and verified
all the same.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of mlp_plain_norm.safetensors
(``normdeploy train export/mlp_plain_norm.toml`` makes it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class PlainBatchNorm:
    """y = gamma (x - mean) / sqrt(var + eps) + beta over the rows of (N, C), var with correction 1."""

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.eps, self.momentum = eps, momentum
        self.training = True
        self.gamma = torch.ones(width, requires_grad=True)
        self.beta = torch.zeros(width, requires_grad=True)
        self.running_mean = torch.zeros(width)
        self.running_var = torch.ones(width)

    def __call__(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.mean(0, keepdim=True)
            var = x.var(0, keepdim=True)
        else:
            mean, var = self.running_mean, self.running_var
        out = self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta
        if self.training:
            with torch.no_grad():
                self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
                self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var
        return out


class MLP(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(64, 128, bias=False)
        self.norm1 = PlainBatchNorm(128)
        self.linear2 = nn.Linear(128, 128, bias=False)
        self.norm2 = PlainBatchNorm(128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm1(self.linear1(x.flatten(1))))
        x = torch.tanh(self.norm2(self.linear2(x)))
        return self.head(x)


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
