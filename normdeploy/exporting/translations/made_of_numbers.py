"""Tensors that are made of numbers alone: windows of signals, and ranges of numbers that are not all whole.

Their value goes into the file, computed in float64 and rounded once. ONNX's HammingWindow has other coefficients than
torch's (25/46 where torch has 0.54), and its Range counts its elements in float32: torch.arange(0, 1.2, 0.2) has 6, the
Range 7. A window's length is always a number: torch takes no size of the run's for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.function_libs.torch_lib.ops import core

from normdeploy.exporting.translations.attention_translation import op

aten = torch.ops.aten
_NOT_SAID = -1
"""What torch's exporter hands over where no dtype was given."""

_OF_MEMORY = frozenset({"layout", "device", "pin_memory"})


def _made(operator: Any, *numbers: float, dtype: int) -> Any:
    """Return what an operator makes of numbers, in float64 and rounded once, as a constant."""
    asked = ir.DataType.FLOAT if dtype == _NOT_SAID else ir.DataType(dtype)
    made = operator(*numbers, dtype=torch.float64).numpy()
    return op.Constant(value=ir.tensor(made.astype(asked.numpy()), dtype=asked))


def wherever_it_lies(translation: Callable[..., Any]) -> Callable[..., Any]:
    """Return a translation that is also told where torch would keep the result, which a file does not say."""

    @wraps(translation)
    def told(*args: Any, **named: Any) -> Any:
        return translation(*args, **{name: given for name, given in named.items() if name not in _OF_MEMORY})

    return told


def _window(operator: Any) -> Callable[..., Any]:
    """Return the translation of a window that has no numbers of its own."""

    @wherever_it_lies
    def window(window_length: int, periodic: bool = True, dtype: int = _NOT_SAID) -> Any:
        return _made(operator, window_length, periodic, dtype=dtype)

    return window


@wherever_it_lies
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, dtype: int = _NOT_SAID
) -> Any:
    """Translate aten.hamming_window."""
    return _made(aten.hamming_window.periodic_alpha_beta, window_length, periodic, alpha, beta, dtype=dtype)


@wherever_it_lies
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, dtype: int = _NOT_SAID) -> Any:
    """Translate aten.kaiser_window."""
    return _made(aten.kaiser_window.beta, window_length, periodic, beta, dtype=dtype)


@wherever_it_lies
def arange(end: Any, dtype: int = _NOT_SAID) -> Any:
    """Translate aten.arange."""
    return _range((end,), dtype) or core.aten_arange(end, dtype=dtype)


@wherever_it_lies
def arange_start(start: Any, end: Any, step: Any = 1, dtype: int = _NOT_SAID) -> Any:
    """Translate aten.arange.start, with a step or without."""
    return _range((start, end, step), dtype) or core.aten_arange_start_step(start, end, step, dtype=dtype)


def _range(numbers: tuple[Any, ...], dtype: int) -> Any:
    """Return a range as a constant; None where a number is fed, or all are whole: of these ONNX counts as many."""
    if not all(isinstance(one, (int, float)) for one in numbers) or all(isinstance(one, int) for one in numbers):
        return None
    if dtype != _NOT_SAID and not ir.DataType(dtype).is_floating_point():
        return None  # torch cuts the numbers first
    return _made(torch.arange, *numbers, dtype=dtype)


hann_window, blackman_window, bartlett_window = (
    _window(operator.periodic) for operator in (aten.hann_window, aten.blackman_window, aten.bartlett_window)
)

TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.hamming_window.default: hamming_window,
    aten.hamming_window.periodic: hamming_window,
    aten.hamming_window.periodic_alpha: hamming_window,
    aten.hamming_window.periodic_alpha_beta: hamming_window,
    aten.hann_window.default: hann_window,
    aten.hann_window.periodic: hann_window,
    aten.blackman_window.default: blackman_window,
    aten.blackman_window.periodic: blackman_window,
    aten.bartlett_window.default: bartlett_window,
    aten.bartlett_window.periodic: bartlett_window,
    aten.kaiser_window.default: kaiser_window,
    aten.kaiser_window.periodic: kaiser_window,
    aten.kaiser_window.beta: kaiser_window,
    aten.arange.default: arange,
    aten.arange.start: arange_start,
    aten.arange.start_step: arange_start,
}
