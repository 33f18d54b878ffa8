"""Arithmetic on sizes for which torch's exporter has no form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import op
from normdeploy.exporting.translations.delegated import NoTranslationError


def round_to_whole(size: Any, ndigits: int | None = None) -> Any:
    """Translate Python's round(size): the nearest integer, of two the even one, as ONNX's Round."""
    if ndigits is not None:
        raise NoTranslationError("round(size, ndigits) has no form in ONNX: round the tensor that is computed with it")
    return op.Cast(op.Round(op.Cast(size, to=ir.DataType.FLOAT)), to=ir.DataType.INT64)


def square_root(size: Any) -> Any:
    """Translate torch.sym_sqrt(size)."""
    return op.Sqrt(op.Cast(size, to=ir.DataType.FLOAT))


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {round: round_to_whole, torch.sym_sqrt: square_root}
