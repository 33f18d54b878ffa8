r"""Fourier transforms of a fixed length: a product with the transform's matrix.

Where a length is no power of two, onnxruntime convolves with a chirp in float32, 70 to 700 times less exactly than
torch; where it is one, 2 to 4 times, and up to 512 points the product is faster (benchmarks/fourier.py). One MatMul
rounds as any linear layer does, and a norm in front of it folds into the matrix. Complex numbers are pairs, so that a
transform of n of them is one real matrix of 2 n rows; computed in float64 and rounded once::

    X_k = c sum_j x_j exp(-+ 2 pi i j k / n)              c by the norm asked for
    x_j = c (Re X_0 + sum_k w_k Re(X_k exp(2 pi i j k / n)))      of half the spectrum: w = 2, and 1 where k = n / 2

Lengths that are not known before the run, above :data:`LONGEST`, or a power of two above :data:`FASTER` stay
transforms; of several dimensions all are products where one is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import fft

from normdeploy.array_types import Floats
from normdeploy.exporting.translations.attention_translation import ints, op

aten = torch.ops.aten
Matrix = Floats

LONGEST = 2048
"""Longest transform that becomes a matrix: (2 n)^2 numbers, 67 MB in float32."""

FASTER = 512
"""Longest power of two whose product takes no longer than the transform."""

UNSCALED, ROOT, WHOLE = range(3)
"""What torch calls normalization: times 1, n^-1/2, n^-1."""


def real_to_complex(self: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """Translate aten._fft_r2c: the last axis of ``dim`` from real numbers, the others from what that gives."""
    if not by_matrices([self.shape[axis] for axis in dim]):
        return fft.aten__fft_r2c(self, dim, normalization, onesided)
    axis, n = dim[-1], self.shape[dim[-1]]
    kept = n // 2 + 1 if onesided else n
    rows = turns(n, kept) * scale_of(n, normalization)
    made = _times(self, axis, _pairs(rows.real, rows.imag), self.dtype, pairs=False)
    made.shape = ir.Shape([*self.shape[:axis], kept, *self.shape[axis + 1 :], 2])
    return _turned(made, dim[:-1], normalization, self.dtype, forward=True)


def complex_to_complex(self: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    """Translate aten._fft_c2c, of pairs of numbers."""
    if not by_matrices([self.shape[axis] for axis in dim]):
        return fft.aten__fft_c2c(self, dim, normalization, forward)
    return _turned(self, dim, normalization, self.dtype, forward=forward)


def complex_to_real(self: Any, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Any:
    """Translate aten._fft_c2r: the last axis of ``dim`` to real numbers, the others before it."""
    known = isinstance(self.shape[dim[-1]], int)
    if not known or not by_matrices([*(self.shape[axis] for axis in dim[:-1]), last_dim_size]):
        return fft.aten__fft_c2r(self, dim, normalization, last_dim_size)
    axis, n = dim[-1], last_dim_size
    turned = _turned(self, dim[:-1], normalization, self.dtype, forward=False)
    rows = np.zeros((self.shape[axis], n), np.complex128)  # what lies beyond half the spectrum is not read
    used = min(len(rows), n // 2 + 1)
    weights = np.array([1.0 if k == 0 or 2 * k == n else 2.0 for k in range(used)])
    rows[:used] = weights[:, None] * turns(n, n)[:used].conj() * scale_of(n, normalization)
    matrix = np.stack([rows.real, -rows.imag], axis=1).reshape(-1, n)
    return _times(turned, axis, matrix, self.dtype, pairs=True, real=True)


def by_matrices(sizes: Sequence[Any]) -> bool:
    """Tell whether transforms of these lengths become products: one of them is better so, and all can be."""
    known = [n for n in sizes if isinstance(n, int) and 0 < n <= LONGEST]
    return len(known) == len(sizes) and any(n.bit_count() > 1 or n <= FASTER for n in known)


def _turned(x: Any, axes: Sequence[int], normalization: int, dtype: ir.DataType, *, forward: bool) -> Any:
    """Transform pairs along axes."""
    shape = x.shape
    for axis in reversed(axes):
        n = shape[axis]
        turned = (turns(n, n) if forward else turns(n, n).conj()) * scale_of(n, normalization)
        rows = np.stack([_pairs(turned.real, turned.imag), _pairs(-turned.imag, turned.real)], axis=1)
        x = _times(x, axis, rows.reshape(2 * n, 2 * n), dtype, pairs=True)
        x.shape = shape
    return x


def turns(n: int, kept: int) -> npt.NDArray[np.complex128]:
    """Return exp(-2 pi i j k / n), ``[n, kept]``; jk is taken modulo n first, which keeps the angle exact."""
    angles = -2.0 * np.pi * (np.outer(np.arange(n), np.arange(kept)) % n) / n
    return np.asarray(np.cos(angles) + 1j * np.sin(angles))


def scale_of(n: int, normalization: int) -> float:
    """Return what a transform is multiplied by, by torch's number for it."""
    return float({UNSCALED: 1.0, ROOT: n**-0.5, WHOLE: 1.0 / n}[normalization])


def _pairs(real: Matrix, imaginary: Matrix) -> Matrix:
    """Return a matrix whose columns are the real and the imaginary part of each number in turns."""
    return np.stack([real, imaginary], axis=-1).reshape(len(real), -1)


def _times(x: Any, axis: int, matrix: Matrix, dtype: ir.DataType, *, pairs: bool, real: bool = False) -> Any:
    """Multiply along an axis by a matrix; the result's type is left to the exporter, which adds a pair's axis with it.

    Args:
        x: numbers, or pairs along their last axis. axis: of the numbers, counted from the front.
        matrix: rows by what is read. dtype: of the numbers. pairs: x holds pairs. real: the result holds none.
    """
    rank = len(x.shape) - pairs
    order = [*(i for i in range(rank) if i != axis), axis]
    moved = op.Transpose(x, perm=[*order, *([rank] if pairs else [])])
    rows = op.Reshape(moved, ints(*[0] * (rank - 1), -1)) if pairs else moved
    product = op.MatMul(rows, op.Constant(value=ir.tensor(matrix.astype(dtype.numpy()))))
    if not real:
        product = op.Reshape(product, ints(*[0] * (rank - 1), -1, 2))
    back = np.argsort(order).tolist()
    return op.Transpose(product, perm=back if real else [*back, rank])


REAL: dict[Callable[..., Any], Callable[..., Any]] = {aten._fft_r2c.default: real_to_complex}
COMPLEX: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._fft_c2c.default: complex_to_complex,
    aten._fft_c2r.default: complex_to_real,
}
"""What is read of real numbers, and of pairs."""
