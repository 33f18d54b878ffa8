"""Matrices of weights that are read side by side: the numbers of a transposed one lie apart, each in a cache line."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from normdeploy.array_types import Array

_BLOCK = 96
"""Rows and columns of a block of numbers that stays in a processor's first cache."""

_SMALL = 1 << 16
"""Numbers that stay in a cache in any order."""

Some = TypeVar("Some", bound=Array)


def lies_by_columns(array: Array) -> bool:
    """Tell whether a matrix of many numbers has those of a column side by side, as a transposed one has."""
    return array.ndim == 2 and array.size > _SMALL and 0 < array.strides[0] < array.strides[1]


def by_rows(array: Some) -> Some:
    """Return a matrix with the numbers of a row side by side: itself, or a copy."""
    if not lies_by_columns(array):
        return array
    rows, columns = array.shape
    found, block = np.empty_like(array, order="C"), np.empty((_BLOCK, _BLOCK), array.dtype)
    for row in range(0, rows, _BLOCK):
        for column in range(0, columns, _BLOCK):  # twice along memory, where NumPy would go across it
            part = array[row : row + _BLOCK, column : column + _BLOCK]
            turned = block[: part.shape[1], : part.shape[0]]
            turned[...] = part.T
            found[row : row + _BLOCK, column : column + _BLOCK] = turned.T
    return found
