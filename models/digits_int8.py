"""A digit classifier trained for 8-bit integers: weights per channel, activations per tensor.

Shows: quantization-aware training with ``torch.fake_quantize_*`` by hand. The BatchNorms go into the steps and the
thresholds of what they stand behind; with ``integer = true`` in the recipe nothing between the image's quantizer and
the logits is a float: ConvInteger, an integer multiplication and a division, MaxPool of bytes, MatMulInteger.

Data: scikit-learn's 1,797 handwritten digits, 8x8. Result and time: see the metadata of digits_int8.safetensors
(``normdeploy train export/digits_int8.toml`` makes it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class Bytes(nn.Module):
    """Round to one of 256 steps from 0 to the largest value seen in training (a running average over batches)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(4.0 / 255))
        self.register_buffer("zero", torch.tensor(0, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.step.lerp_(x.amax().float().clamp(min=1e-3) / 255, 0.05)
        return torch.fake_quantize_per_tensor_affine(x, self.step, self.zero, 0, 255)


def quantized_rows(weight: Tensor, largest: int) -> Tensor:
    """Round each output channel's weights to a step of its own, from -largest to largest steps."""
    rows = weight.detach().flatten(1).abs().amax(1).clamp(min=1e-6)
    zeros = torch.zeros(len(rows), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(weight, rows / largest, zeros, 0, -largest, largest)


class Conv(nn.Conv2d):
    """A convolution with 8-bit weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, quantized_rows(self.weight, 127), self.bias)


class Linear(nn.Linear):
    """A fully connected layer with 8-bit weights."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, quantized_rows(self.weight, 127), self.bias)


def block(inputs: int, outputs: int, *, stride: int = 1) -> list[nn.Module]:
    """Return convolution, norm, activation and quantizer."""
    conv = Conv(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU(), Bytes()]


class DigitsInt8(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.input = Bytes()
        self.features = nn.Sequential(*block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), nn.MaxPool2d(2))
        self.head = Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.input(x)).flatten(1))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
