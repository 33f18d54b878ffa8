r"""Norms of values far from zero: folded forward they would cost precision, so they stay.

W (s x + t) = (W s) x + W t holds in real numbers. In float32 the left sums terms of the size of what the norm returns,
the right of the size of s x, and takes W t off again at the end: what was lost in the sum stays lost. With the mean m
and the standard deviation sigma of x, gamma and beta of the norm, the terms are larger by the factor::

    offset = RMS(gamma m / sigma) / RMS(gamma, beta)          over channels

A BatchNormalization tells m and sigma. Any other map s x + t is taken for a standardization, whose results are around
1: its offset is RMS(t).

Backward there is nothing to lose: an operator in front of a norm makes the large values anyway, with the norm or
without it. A map that stays is written as its author wrote it: (x - m) / sigma is exact where s x + t is not.

Source: measured by ``python benchmarks/fold_numerics.py --offsets`` (docs/graphs-from-anywhere.md).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.rewrite.affine.affine_node import affine_map, origins_of, written_of

OFFSET = "offset"
DEVIATION = "deviation"
"""The median of the standard deviations of a BatchNormalization's channels."""

LARGEST = 3.0
"""Largest offset that is folded forward: a bit and a half of 24. Images normalized by ImageNet's statistics have 2."""


def offset_of(moved: Floats, size: Floats) -> float:
    """Return RMS(moved) / RMS(size); 0 where nothing is moved.

    Args:
        moved: what a norm takes off, in units of its result, by channel: gamma m / sigma.
        size: RMS of its result, by channel: sqrt(gamma^2 + beta^2).
    """
    top, bottom = float(np.square(moved).mean()), float(np.square(size).mean())
    return float(np.sqrt(top / bottom)) if top and bottom else 0.0


def offset_in(node: ir.Node) -> float:
    """Return how far an Affine's inputs lie from zero, in units of its results."""
    known = [float(origin.detail[OFFSET]) for origin in origins_of(node) if OFFSET in origin.detail]
    shift = affine_map(node).shift
    return max(known, default=offset_of(shift, np.ones(1)))


def is_far(node: ir.Node) -> bool:
    """Tell whether an Affine has to see its inputs before anything sums them."""
    return offset_in(node) > LARGEST


def is_centred(node: ir.Node) -> bool:
    """Tell whether an Affine far from zero was written in steps, (x - m) / sigma, that lose less than s x + t does."""
    written = written_of(node)
    centres_first = len(written) > 1 and written[0].op_type in ("Add", "Sub")
    return centres_first and is_far(node) and not affine_map(node).no_scale
