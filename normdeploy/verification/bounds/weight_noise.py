"""A weight with the noise of one rounding: as many random numbers as are drawn once, for all weights of all graphs."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import ExactTensor, tensor64

_PATTERN = 1 << 18
"""Random numbers, from the first of a weight to its last, and over again."""


def with_noise(tensor: ir.TensorProtocol, amplitude: float, seed: int) -> Floats:
    """Return a weight in float64, each number multiplied by 1 + amplitude U[-1, 1].

    One piece after the other: the noise of all of a large weight would be as much as the weight in float64.

    Args:
        tensor: the weight. amplitude: of the noise. seed: where in the random numbers its own begin.
    """
    start, count = seed % _PATTERN, min(tensor.size, _PATTERN)
    factors = 1 + amplitude * _pattern()[start : start + count]
    plain = tensor.dtype is ir.DataType.FLOAT and not isinstance(tensor, ExactTensor)
    value = tensor.numpy() if plain else tensor64(tensor)
    if count == value.size or not value.flags.c_contiguous:
        return np.asarray(value * np.resize(factors, value.shape))
    noisy, numbers = np.empty(value.size), value.reshape(-1)
    for at in range(0, value.size, count):
        piece = numbers[at : at + count]
        np.multiply(piece, factors[: piece.size], out=noisy[at : at + count])
    return noisy.reshape(value.shape)


@cache
def _pattern() -> Floats:
    """Return the random numbers twice in a row, 4 MB: a piece of them may begin at any."""
    return np.tile(np.random.default_rng(0).uniform(-1, 1, _PATTERN), 2)
