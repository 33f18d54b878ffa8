"""The standardization of the training data as a part of the network that is deployed: it folds into the first layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from normdeploy.errors import InputError
from normdeploy.train.data import FileSplit, Split, Splits, Standardization


def _raw(split: Split | FileSplit, by: Standardization) -> Split | FileSplit:
    if isinstance(split, Split):
        return Split(by.raw(split.inputs), split.targets)
    return replace(split, dataset=_Raw(split.dataset, by))


def as_raw(splits: Splits) -> Splits:
    """Return the splits as they were before they were standardized.

    Raises:
        InputError: nothing is known of how they were.
    """
    by = splits.standardization
    if by is None:
        raise InputError(
            "preprocess = true and the data is not standardized; expected standardize = true under [data], or Splits "
            "with a standardization: leave preprocess out"
        )
    train, valid, test = (_raw(split, by) for split in (splits.train, splits.valid, splits.test))
    return replace(splits, train=train, valid=valid, test=test, standardization=None)


class _Raw(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, dataset: Dataset[tuple[Tensor, Tensor]], by: Standardization) -> None:
        self.dataset, self.by = dataset, by

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.dataset[index]
        return self.by.raw(inputs[None])[0], target


class Preprocessed(nn.Module):
    """A network behind the standardization of its training data: x -> model((x - mean) / deviation).

    Args:
        model: takes standardized inputs.
        by: what they were standardized by.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, by: Standardization) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", by.mean)
        self.register_buffer("deviation", by.deviation)

    def forward(self, input: Tensor) -> Any:  # noqa: A002 - the name of the graph's input
        """Return what the model makes of the standardized inputs."""
        return self.model((input - self.mean) / self.deviation)
