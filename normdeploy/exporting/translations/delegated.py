"""Operators whose translation by torch is right for some arguments: brought into that form, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript.function_libs.torch_lib.ops import core


class NoTranslationError(NotImplementedError):
    """A torch operator has no form in ONNX with these arguments."""


def require_no_projection(size: int) -> None:
    """Refuse an LSTM that puts out a projection of its hidden state; 0 for none.

    Raises:
        NoTranslationError: it does.
    """
    if size:
        raise NoTranslationError(
            f"nn.LSTM(proj_size={size}) has no ONNX form: use proj_size=0 and an nn.Linear behind it"
        )


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
    require_no_projection(hx[0].shape[-1] if hx[0].shape[-1] != hx[1].shape[-1] else 0)
    return core.aten_lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
