"""A digit classifier of 4-bit weights and activations with learned clipping (PACT).

Shows: a quantizer in plain arithmetic, as papers' code has it: clamp, divide, round, multiply, with the gradient passed
straight through. With ``integer = true`` in the recipe Round, its step and the BatchNorm in front of it become integer
arithmetic on the accumulator, and nothing between the image's quantizer and the logits is a float.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of digits_int4.safetensors
(``normdeploy train export/digits_int4.toml`` makes it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


def rounded(x: Tensor, training: bool) -> Tensor:
    """Round to the nearest integer; in training the gradient passes straight through."""
    return x + (torch.round(x) - x).detach() if training else torch.round(x)


class Levels(nn.Module):
    """y = s round(clamp(x, 0, c) / s), s = c / 15, with the clipping point c learned.

    Source: J. Choi et al., PACT: Parameterized Clipping Activation for Quantized Neural Networks, 2018.
    """

    def __init__(self, clip: float) -> None:
        super().__init__()
        self.clip = nn.Parameter(torch.tensor(clip))

    def forward(self, x: Tensor) -> Tensor:
        step = self.clip.abs() / 15
        return rounded(torch.clamp(x / step, 0, 15), self.training) * step


class Conv(nn.Conv2d):
    """A convolution with weights of 15 levels per output channel."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().amax((1, 2, 3), keepdim=True) / 7
        return self._conv_forward(x, rounded(self.weight / step, self.training) * step, self.bias)


class Linear(nn.Linear):
    """A fully connected layer with weights of 15 levels per output."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().amax(1, keepdim=True) / 7
        return nn.functional.linear(x, rounded(self.weight / step, self.training) * step, self.bias)


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Return convolution, norm and quantizer, which cuts negative values off itself."""
    return [Conv(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), Levels(3.0)]


class DigitsInt4(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Levels(1.0)
        self.features = nn.Sequential(*block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), nn.MaxPool2d(2))
        self.head = Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.input(x)).flatten(1))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
