"""Operators whose translation by torch is right for some arguments: brought into that form, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript.function_libs.torch_lib.ops import core

from normdeploy.exporting.attention_translation import op


class NoTranslationError(NotImplementedError):
    """A torch operator has no form in ONNX with these arguments."""


def _of_index(src: Any, index: Any) -> Any:
    """Return the part of a source that an index reads: torch lets it be larger, ScatterElements does not."""
    known = index.shape is not None and src.shape is not None
    if known and all(isinstance(a, int) and a == b for a, b in zip(index.shape, src.shape, strict=True)):
        return src
    ends = op.Shape(index)
    part = op.Slice(src, op.Mul(ends, op.Constant(value_ints=[0])), ends)
    part.shape, part.dtype = index.shape, src.dtype  # torch's translations ask for them
    return part


def scatter_src(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Translate aten.scatter.src."""
    return core.aten_scatter_src(self, dim, index, _of_index(src, index))


def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Translate aten.scatter_add."""
    return core.aten_scatter_add(self, dim, index, _of_index(src, index))


def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """Translate aten.scatter_reduce.two."""
    return core.aten_scatter_reduce(self, dim, index, _of_index(src, index), reduce, include_self)


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
