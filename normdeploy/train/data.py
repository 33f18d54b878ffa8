"""What a model file's ``data()`` returns: three splits held as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from normdeploy.errors import InputError

Task = Literal["classification", "reconstruction"]


@dataclass(frozen=True)
class Split:
    """Samples and what is expected of them.

    Args:
        inputs: (N, ...) any dtype.
        targets: (N,) or (N, T) int64 class numbers, or (N, ...) values to reconstruct.

    Raises:
        InputError: the two differ in length, or there is nothing.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise InputError(
                f"a split has {len(self.inputs)} inputs and {len(self.targets)} targets; expected as many of each "
                "and at least one: check data() in the model file"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> Split:
        """Return the split on ``device``."""
        return Split(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True)
class Splits:
    """Training, validation and test data of one model.

    Args:
        train: what is learnt from.
        valid: decides which epoch is kept and when to stop.
        test: looked at once, at the end.
        task: ``"classification"``: cross entropy over the last axis of the output, targets are class numbers;
            ``"reconstruction"``: mean squared error.
        augment: changes a training batch, ``(inputs, generator) -> inputs`` of the same shape; None for none.
        class_names: names of the classes, for reports.
    """

    train: Split
    valid: Split
    test: Split
    task: Task = "classification"
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    class_names: tuple[str, ...] = ()


def batches(
    split: Split, batch_size: int, generator: torch.Generator | None = None, *, at_least: int = 1
) -> Iterator[Split]:
    """Cut ``split`` into batches; shuffled when a (CPU) generator is given.

    Args:
        split: what to cut.
        batch_size: samples per batch; the last one has what is left.
        generator: draws the order; None keeps it.
        at_least: a last batch of fewer samples is left out (batch statistics of a single sample have no variance).
    """
    count = len(split)
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    order = order.to(split.inputs.device)
    for start in range(0, count, batch_size):
        rows = order[start : start + batch_size]
        if len(rows) < at_least:
            return
        yield Split(split.inputs[rows], split.targets[rows])


def split_rows(count: int, *, valid: float = 0.15, test: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return shuffled row numbers of the training, validation and test parts, the same for the same ``seed``.

    Args:
        count: number of samples.
        valid: share of the validation part.
        test: share of the test part.
        seed: of the shuffle.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    tests, valids = round(count * test), round(count * valid)
    return order[tests + valids :], order[tests : tests + valids], order[:tests]
