"""AdamW with weight decay where it belongs; its learning rate rises in a line, then falls by half a cosine to zero."""

from __future__ import annotations

import math
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


def learning_rate(step: int, steps: int, *, peak: float, warmup: float) -> float:
    """Return the learning rate of one step.

    ``peak * (step + 1) / rise`` for the first ``rise = round(warmup * steps)`` steps, then
    ``peak * (1 + cos(pi * t)) / 2`` with t running from 0 towards 1.

    Args:
        step: number of the step, from 0.
        steps: how many there are.
        peak: highest learning rate.
        warmup: share of the steps that rise.

    Source:
        I. Loshchilov, F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017, equation 5
        (without restarts).
    """
    rise = round(warmup * steps)
    if step < rise:
        return peak * ((step + 1) / rise)
    # the factor first: it is at most 1, so no rounding can lift the rate above the peak
    return peak * ((1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2)
