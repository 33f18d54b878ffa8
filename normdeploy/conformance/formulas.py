"""The operators of the cases in NumPy and float64, from their textbook formulas: nothing of the package is used."""

from __future__ import annotations

import numpy as np

from normdeploy.array_types import Array


def _channelwise(vector: Array, rank: int) -> Array:
    return vector.reshape([-1 if at == 1 else 1 for at in range(rank)])


def batch_norm(x: Array, scale: Array, shift: Array, mean: Array, variance: Array, *, epsilon: float = 1e-5) -> Array:
    """(x - m) / sqrt(v + e) g + b, per channel."""
    scale, shift, mean, variance = (
        _channelwise(np.asarray(v, np.float64), x.ndim) for v in (scale, shift, mean, variance)
    )
    return np.asarray((x - mean) / np.sqrt(variance + epsilon) * scale + shift)


def layer_norm(
    x: Array,
    *,
    axes: int | tuple[int, ...] = -1,
    correction: int = 0,
    epsilon: float = 1e-5,
    on_deviation: bool = False,
) -> Array:
    """(x - m) / sqrt(v + e), or (x - m) / (s + e), m and v over some axes."""
    centred = x - x.mean(axes, keepdims=True)
    variance = x.var(axes, keepdims=True, ddof=correction)
    return np.asarray(centred / (np.sqrt(variance) + epsilon if on_deviation else np.sqrt(variance + epsilon)))


def windows(x: Array, kernel: tuple[int, int], stride: int = 1) -> Array:
    """The windows of [n, c, h, w] as [n, c, h', w', kernel rows, kernel columns]."""
    found = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))
    return np.asarray(found[:, :, ::stride, ::stride])


def padded(x: Array, border: int) -> Array:
    """[n, c, h, w] with a border of zeros."""
    return np.pad(x, ((0, 0), (0, 0), (border, border), (border, border)))


def convolution(x: Array, w: Array, bias: Array | None = None, *, border: int = 0, groups: int = 1) -> Array:
    """sum over c, i, j of x[n, c, h + i, w + j] w[o, c, i, j] + b[o], groups of channels apart."""
    x = padded(np.asarray(x, np.float64), border)
    parts = [
        np.einsum("nchwij,ocij->nohw", windows(into, (w.shape[2], w.shape[3])), kernel)
        for into, kernel in zip(np.split(x, groups, axis=1), np.split(w.astype(np.float64), groups), strict=True)
    ]
    y = np.concatenate(parts, axis=1)
    return y if bias is None else y + _channelwise(bias, 4)


def transposed_convolution(x: Array, w: Array, *, groups: int = 1) -> Array:
    """Every x[n, c, h, w] adds itself times w[c, o] at h.., w.. of output o, groups of channels apart."""
    parts = []
    for into, kernel in zip(np.split(x.astype(np.float64), groups, axis=1), np.split(w, groups), strict=True):
        count, _, height, width = into.shape
        _, outs, rows, columns = kernel.shape
        y = np.zeros((count, outs, height + rows - 1, width + columns - 1))
        for i in range(rows):
            for j in range(columns):
                y[:, :, i : i + height, j : j + width] += np.einsum("nchw,co->nohw", into, kernel[:, :, i, j])
        parts.append(y)
    return np.concatenate(parts, axis=1)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))
