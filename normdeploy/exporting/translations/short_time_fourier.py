r"""Short-time Fourier transforms of a fixed length: a convolution with the windowed transform's matrix.

Frames of n samples, one every ``hop``, times a window, transformed::

    Y[k, t] = c sum_j w_j x[t hop + j] exp(-2 pi i j k / n)        c = n^-1/2 where normalized, else 1

This is a convolution of stride ``hop`` with two channels for each k, their weights cos and -sin times the window:
computed in float64 and rounded once. onnxruntime's own operator is as coarse as its transform
(:mod:`normdeploy.exporting.translations.fourier_translations`, which says for which lengths a matrix is the better).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import core

from normdeploy.exporting.translations.attention_translation import ints, op
from normdeploy.exporting.translations.delegated import NoTranslationError
from normdeploy.exporting.translations.fourier_translations import ROOT, UNSCALED, by_matrices, scale_of, turns


def stft(
    self: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Translate aten.stft of real numbers; where it is centred, torch has padded them before."""
    if align_to_window and win_length not in (None, n_fft):
        raise NoTranslationError("stft(align_to_window=True) of a window shorter than n_fft: pad the window")
    if self.dtype != ir.DataType.FLOAT or not by_matrices([n_fft]):
        return core.aten_stft(self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex)
    kept = n_fft // 2 + 1 if onesided is None or onesided else n_fft
    rows = turns(n_fft, kept).T * scale_of(n_fft, ROOT if normalized else UNSCALED)
    matrix = np.stack([rows.real, rows.imag], axis=1).reshape(2 * kept, 1, n_fft)
    length = n_fft if win_length is None else win_length
    before = (n_fft - length) // 2
    if window is None:
        matrix[..., :before] = matrix[..., before + length :] = 0.0
    weight = op.Constant(value=ir.tensor(matrix.astype(np.float32)))
    if window is not None:
        whole = window if length == n_fft else op.Pad(window, ints(before, n_fft - length - before))
        weight = op.Mul(weight, op.CastLike(whole, self))
    alone = len(self.shape) == 1
    frames = op.Conv(op.Unsqueeze(self, ints(0, 1) if alone else ints(1)), weight, strides=[hop_length or n_fft // 4])
    pairs = op.Transpose(op.Reshape(frames, ints(0, kept, 2, -1)), perm=[0, 1, 3, 2])
    return op.Squeeze(pairs, ints(0)) if alone else pairs


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {torch.ops.aten.stft.default: stft}
