"""AdamW, with weight decay where it belongs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normdeploy.parsing.recipe import TrainSection


def make_optimizer(tensors: Sequence[Tensor], settings: TrainSection) -> torch.optim.Optimizer:
    """Build AdamW for ``tensors``.

    Weight decay is for tensors of rank 2 and more: scales, shifts and biases (rank 1, or one row) are left alone.

    Args:
        tensors: leaves with gradient.
        settings: lr and weight_decay are used.

    Source:
        I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2.
    """

    def decays(tensor: Tensor) -> bool:
        return sum(size > 1 for size in tensor.shape) > 1

    groups = [
        {"params": [t for t in tensors if decays(t)], "weight_decay": settings.weight_decay},
        {"params": [t for t in tensors if not decays(t)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr)
