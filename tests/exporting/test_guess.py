"""Inputs that are guessed run, come from the layers that are named, and can be said otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normdeploy.errors import InputError
from normdeploy.exporting.module.guess import guess_inputs, guess_note


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, scale: float = 2.0) -> Tensor:
        return self.head((self.table(input_ids) * attention_mask[..., None]).sum(1) * scale)


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4 * 26 * 26, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.conv(image).flatten(1))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.right, self.left = nn.Linear(7, 4), nn.Linear(5, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)


class Pixels(nn.Module):
    """A first linear layer behind an unflattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        return self.head(x.reshape(batch, channels * height * width))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 5)

    def forward(self, steps: Tensor) -> Tensor:
        return self.cell(steps)[0].transpose(0, 1)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def lightning() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 2))
    model.example_input_array = torch.zeros(1, 2, 3, 4)
    return model


def pooled(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1))


def timm() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1))
    model.pretrained_cfg = {"input_size": (3, 48, 40)}
    return model


@pytest.mark.parametrize(
    ("build", "flags", "word"),
    [
        (Tokens, "--input input_ids=int64:batchx16 --input attention_mask=int64:batchx16", "Embedding(50, 8)"),
        (Flat, "--input image=float32:batchx1x28x28", "conv is Conv2d(1, 4"),
        (Pair, "--input a=float32:batchx5 --input b=float32:batchx7", "right is Linear(in_features=7"),
        (Pixels, "--input x=float32:batchx3x8x8", "head is Linear(in_features=192"),
        (Sequence, "--input steps=float32:16xbatchx6", "cell is LSTM(6, 5)"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 7, 2), nn.AdaptiveAvgPool2d(1)),
            "--input input=float32:batchx3x224x224",
            "0",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1)),
            "--input input=float32:batchx3x32x32",
            "0",
        ),
        (lambda: nn.Sequential(nn.Linear(4, 2).double()), "--input input=float64:batchx4", "0"),
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 5), nn.BatchNorm1d(3)), "--input input=float32:batchx2x16", "Conv1d"),
        (
            lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.AdaptiveAvgPool3d(1)),
            "--input input=float32:batchx2x16x16x16",
            "Conv3d(2, 3",
        ),
        (Attends, "--input x=float32:batchx16x8", "MultiheadAttention"),
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh()), "--input input=float32:batchx16x6", "0 is LayerNorm"),
        (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh()), "--input input=float32:batchx4x32x32", "GroupNorm(2, 4"),
        (lightning, "--input input=float32:batchx2x3x4", "example_input_array"),
        (timm, "--input input=float32:batchx3x48x40", "input_size"),
    ],
)
def test_what_networks_take(build: Callable[[], nn.Module], flags: str, word: str) -> None:
    model = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    guess = guess_inputs(model)
    assert guess.flags() == flags
    assert word in guess.why
    assert flags in guess_note(guess)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != 5:
            raise ValueError("five columns, please")
        return self.head(x[..., :4])


def test_what_cannot_be_guessed_names_the_parameter_and_the_last_failure() -> None:
    with pytest.raises(InputError, match=r"were tried.*ValueError: five columns.*--input NAME=DTYPE:SHAPE for x"):
        guess_inputs(Strange())
    with pytest.raises(InputError, match=r"no layer tells.*--input"):
        guess_inputs(nn.ReLU())

    class Nothing(nn.Module):
        def forward(self) -> Tensor:
            return torch.zeros(1)

    with pytest.raises(InputError, match="no required parameter"):
        guess_inputs(Nothing())
