"""Random numbers of which what a norm does shows: of the spread of its epsilon, or of the statistics that it stores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.verification.mutation.mutants import BATCH_NORM, INSTANCE_NORM

ROWS = 4
"""Rows of random numbers on which a mutant is compared with its site."""

SAMPLES = 2
"""Samples of random numbers for what looks at a sample as a whole."""

_GROUP = 4096
"""Numbers of a group on which it is: of a larger one, for the most that a mutant shows by (the other correction of n
numbers by 1 / 2 n), it is set down as showing by that much less."""


def random_rows(node: ir.Node, held: Sequence[Tensor | None], epsilon: float, size: int) -> tuple[Tensor, float]:
    """Return random numbers of which the norm's epsilon and statistics show: of its spread, or of the stored one.

    Args:
        size: of a row.

    Returns:
        The numbers, and the part of a row that they are.
    """
    if node.op_type == BATCH_NORM:
        mean, variance = held[2], held[3]
        assert mean is not None
        assert variance is not None
        return random_numbers((ROWS, len(mean))) * (variance + epsilon).sqrt() + mean, 1.0
    assert held[0] is not None
    spread = math.sqrt(epsilon or 1.0)
    if node.op_type == INSTANCE_NORM:
        drawn = min(size, _GROUP)
        return random_numbers((1, len(held[0]), drawn)) * spread, drawn / size
    return random_numbers((ROWS, *held[0].shape)) * spread, 1.0


def random_numbers(shape: Sequence[int]) -> Tensor:
    """Return normal random numbers, the same whenever they are asked for."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def away_from(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference over the largest of what is wanted; infinite for what is no number."""
    if found.shape != wanted.shape:
        return math.inf
    away = float((found - wanted).abs().max()) / max(float(wanted.abs().max()), 1e-300)
    return away if math.isfinite(away) else math.inf
