"""A binary digit classifier: weights are plus or minus one scale per channel, activations plus or minus one.

Shows: signs in place of quantizers. A BatchNorm in front of a sign is one comparison of the accumulator with an
integer; with ``integer = true`` in the recipe that is what the file does, and nothing between the image's quantizer and
the logits is a float.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of digits_binary.safetensors
(``normdeploy train export/digits_binary.toml`` makes it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


def sign(x: Tensor, training: bool) -> Tensor:
    """Return 1 where x >= 0 and -1 elsewhere; in training the gradient is that of clamp(x, -1, 1).

    Source: M. Courbariaux et al., Binarized Neural Networks, 2016.
    """
    binary = torch.where(x >= 0, 1.0, -1.0)
    if not training:
        return binary
    passed = x.clamp(-1, 1)
    return passed + (binary - passed).detach()


class Sign(nn.Module):
    """Signs as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return sign(x, self.training)


class Pixels(nn.Module):
    """Round pixels to the 17 grey values that the digits have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 1 / 16, 0, 0, 16)


class Conv(nn.Conv2d):
    """A convolution with weights s sign(w), s the mean size of an output channel's weights.

    Source: M. Rastegari et al., XNOR-Net, 2016.
    """

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.detach().abs().mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, sign(self.weight, self.training) * size, self.bias)


class Linear(nn.Linear):
    """A fully connected layer with weights s sign(w)."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.detach().abs().mean(1, keepdim=True)
        return nn.functional.linear(x, sign(self.weight, self.training) * size, self.bias)


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Return convolution, norm and sign."""
    return [Conv(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), Sign()]


class DigitsBinary(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = Pixels()
        self.features = nn.Sequential(*block(1, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 64), nn.MaxPool2d(2))
        self.head = Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.pixels(x)).flatten(1))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
