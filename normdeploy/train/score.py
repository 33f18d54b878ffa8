"""Loss and quality of a model on a split."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normdeploy.nn.unregistered import mode
from normdeploy.train.data import FileSplit, Split, Task, batches


@dataclass(frozen=True)
class Score:
    """How good a model is on a split.

    Args:
        loss: mean loss per sample (or per position of a sequence).
        accuracy: share of right classes; for reconstruction R^2, the share of the targets' variance that is explained.
        count: number of samples.
    """

    loss: float
    accuracy: float
    count: int


def loss_of(task: Task, output: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean loss in float32.

    Args:
        task: see :class:`normdeploy.train.data.Splits`.
        output: (N, K) or (N, T, K) logits; or reconstruction of the targets' shape.
        targets: (N,) or (N, T) class numbers; or values.
        label_smoothing: of the cross entropy.

    >>> loss_of("classification", torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor(0.6931)
    """
    if task == "reconstruction":
        return nn.functional.mse_loss(output.float(), targets.float())
    logits = output.float().reshape(-1, output.shape[-1])
    return nn.functional.cross_entropy(logits, targets.reshape(-1), label_smoothing=label_smoothing)


@torch.no_grad()
def score(model: nn.Module, split: Split | FileSplit, task: Task = "classification", *, batch_size: int = 512) -> Score:
    """Evaluate ``model`` on ``split`` in evaluation mode and without gradients; its mode is given back.

    Args:
        model: on the same device as the split.
        split: what to evaluate on.
        task: which loss and which measure of quality.
        batch_size: samples per forward pass.

    >>> net, rows = nn.Identity(), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> score(net, Split(rows, torch.tensor([0, 0]))).accuracy
    0.5
    """
    loss = right = squares = 0.0
    places = 0
    with mode(model, training=False):
        for part in batches(split, batch_size):
            output = model(part.inputs)
            count = part.targets.numel()
            loss += float(loss_of(task, output, part.targets)) * count
            places += count
            if task == "reconstruction":
                squares += float((output.double() - part.targets.double()).square().sum())
            else:
                right += int((output.argmax(-1) == part.targets).sum())
    if task == "reconstruction":
        spread = float(split.targets.double().var(correction=0)) * split.targets.numel()
        return Score(loss / places, 1 - squares / spread, len(split))
    return Score(loss / places, right / places, len(split))
