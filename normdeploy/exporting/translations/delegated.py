"""Operators whose translation by torch is right for some arguments: brought into that form, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript.function_libs.torch_lib.ops import core


class NoTranslationError(NotImplementedError):
    """A torch operator has no form in ONNX with these arguments."""


def lstm(
    input: Any,  # noqa: A002 - torch's name: the exporter passes arguments by name
    hx: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Translate aten.lstm.input, projections left out: ONNX's LSTM puts out its whole hidden state.

    Raises:
        NoTranslationError: ``proj_size`` is not 0.
    """
    if hx[0].shape[-1] != hx[1].shape[-1]:
        raise NoTranslationError(
            f"nn.LSTM(proj_size={hx[0].shape[-1]}) has no ONNX form: use proj_size=0 and an nn.Linear behind it"
        )
    return core.aten_lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
