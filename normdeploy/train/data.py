"""What a model file's ``data()`` returns: three splits, held as tensors or read from files as they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

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

    def chunks(self, rows: Iterable[Tensor]) -> Iterator[Split]:
        """Yield the samples of the given row numbers, one split for each."""
        for chosen in rows:
            there = chosen.to(self.inputs.device)
            yield Split(self.inputs[there], self.targets[there])

    def head(self, count: int) -> Split:
        """Return the first samples, ``count`` of them where there are as many."""
        return Split(self.inputs[:count], self.targets[:count])

    def digests(self) -> dict[str, str]:
        """Return what the content is, by name: dtype, shape and SHA-256 of each tensor."""
        return {"inputs": tensor_digest(self.inputs), "targets": tensor_digest(self.targets)}


@dataclass(frozen=True)
class FileSplit:
    """Samples that are read when they are needed, by processes of torch's DataLoader.

    Args:
        dataset: sample number to (input, target): any map-style dataset of torch.
        targets: (N,) all targets; they are small.
        content: what identifies the samples (digests of the files), for telling whether weights are up to date.
        workers: processes that read ahead; 0 reads in this one.
        device: where batches go.
    """

    dataset: Dataset[tuple[Tensor, Tensor]]
    targets: Tensor
    content: str
    workers: int = 0
    device: str | torch.device = "cpu"

    def __post_init__(self) -> None:
        if len(self.targets) == 0:
            raise InputError("a split has no samples; expected at least one: check the data of the recipe")

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str) -> FileSplit:
        """Return the split with its batches on ``device``."""
        return replace(self, device=device)

    def chunks(self, rows: Iterable[Tensor]) -> Iterator[Split]:
        """Yield the samples of the given row numbers, one split for each; read ahead by the workers."""
        order = [chosen.tolist() for chosen in rows]
        generator = torch.Generator()  # of its own: the training's random numbers do not depend on how data are read
        loader = DataLoader(self.dataset, batch_sampler=order, num_workers=self.workers, generator=generator)
        for inputs, targets in loader:
            yield Split(inputs.to(self.device), targets.to(self.device))

    def head(self, count: int) -> Split:
        """Return the first samples, ``count`` of them where there are as many."""
        return next(self.chunks([torch.arange(min(count, len(self)))]))

    def digests(self) -> dict[str, str]:
        """Return what the content is, by name."""
        return {"files": self.content, "targets": tensor_digest(self.targets)}


@dataclass(frozen=True)
class Standardization:
    """What the samples of a recipe were standardized by: (x - mean) / deviation.

    Args:
        mean, deviation: broadcast against a batch of inputs; float32.
    """

    mean: Tensor
    deviation: Tensor

    def standardized(self, raw: Tensor) -> Tensor:
        """Return (raw - mean) / deviation."""
        return (raw - self.mean.to(raw.device)) / self.deviation.to(raw.device)

    def raw(self, inputs: Tensor) -> Tensor:
        """Return what ``inputs`` were before."""
        return inputs * self.deviation.to(inputs.device) + self.mean.to(inputs.device)


@dataclass(frozen=True)
class Splits:
    """Training, validation and test data of one model.

    Example::

        def data() -> Splits:
            x, y = torch.randn(300, 4), torch.randint(0, 3, (300,))
            train, valid, test = (Split(x[rows], y[rows]) for rows in split_rows(len(x)))
            return Splits(train, valid, test, class_names=("ant", "bee", "cat"))

    Args:
        train: what is learnt from.
        valid: decides which epoch is kept and when to stop.
        test: looked at once, at the end.
        task: ``"classification"``: cross entropy over the last axis of the output, targets are class numbers;
            ``"reconstruction"``: mean squared error.
        augment: changes a training batch, ``(inputs, generator) -> inputs`` of the same shape; None for none.
        class_names: names of the classes, for whoever reads what the model says.
        standardization: what the inputs were standardized by, so that ``preprocess = true`` can write it into the file;
            None where they are as they come.
    """

    train: Split | FileSplit
    valid: Split | FileSplit
    test: Split | FileSplit
    task: Task = "classification"
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    class_names: tuple[str, ...] = ()
    standardization: Standardization | None = None


def batches(
    split: Split | FileSplit, batch_size: int, generator: torch.Generator | None = None, *, at_least: int = 1
) -> Iterator[Split]:
    """Cut ``split`` into batches; shuffled when a (CPU) generator is given.

    Args:
        split: what to cut.
        batch_size: samples per batch; the last one has what is left.
        generator: draws the order; None keeps it.
        at_least: a last batch of fewer samples is left out (batch statistics of a single sample have no variance).

    >>> split = Split(torch.arange(5.0), torch.arange(5))
    >>> [batch.targets.tolist() for batch in batches(split, 2)]
    [[0, 1], [2, 3], [4]]
    """
    count = len(split)
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    parts = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    yield from split.chunks(rows for rows in parts if len(rows) >= at_least)


def tensor_digest(tensor: Tensor) -> str:
    """Return dtype, shape and the SHA-256 of a tensor's bytes, in row order."""
    whole = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(whole.reshape(-1).view(torch.uint8).numpy().data)
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {digest.hexdigest()}"


def split_rows(count: int, *, valid: float = 0.15, test: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return shuffled row numbers of the training, validation and test parts, the same for the same ``seed``.

    Args:
        count: number of samples.
        valid: share of the validation part.
        test: share of the test part.
        seed: of the shuffle.

    >>> [len(rows) for rows in split_rows(100)]
    [65, 15, 20]
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    tests, valids = round(count * test), round(count * valid)
    return order[tests + valids :], order[tests : tests + valids], order[:tests]
