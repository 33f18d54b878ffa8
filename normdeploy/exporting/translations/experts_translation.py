"""Products of groups of rows, each with a matrix of its own: the experts of a mixture, as transformers computes them.

Rows are sorted by expert, and ``offs[e]`` is the end of what belongs to expert e::

    y[s] = x[s] W[e]    for offs[e-1] <= s < offs[e]

transformers has an operator for it that takes torch's grouped_mm's place while a trace is made, and torch's exporter
has no translation. Here the rows are split by the sizes of the groups, and each part is one MatMul with constant
weights, so that the work is that of the chosen experts, not of all. Rows behind the last end are undefined in torch;
the last expert takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import ints, op
from normdeploy.exporting.translations.delegated import NoTranslationError


def grouped_mm(input: Any, weight: Any, offs: Any) -> Any:  # noqa: A002 - the operator's name for it
    """Translate transformers.grouped_mm_fallback: rows ``[rows, inputs]``, matrices ``[groups, inputs, outputs]``.

    Raises:
        NoTranslationError: the number of groups is not fixed.
    """
    groups = weight.shape[0]
    if not isinstance(groups, int):
        raise NoTranslationError(f"a product of groups needs a fixed number of groups; {groups} is not")
    ends = op.Cast(offs, to=ir.DataType.INT64)
    inner = op.Slice(ends, ints(0), ints(-1), ints(0))
    begins = op.Concat(ints(0), inner, axis=0)
    sizes = op.Sub(op.Concat(inner, op.Shape(input, start=0, end=1), axis=0), begins)
    parts = _split(input, sizes, groups)
    products = [op.MatMul(part, op.Gather(weight, op.Constant(value_int=e), axis=0)) for e, part in enumerate(parts)]
    return op.Concat(*products, axis=0) if groups > 1 else products[0]


def _split(rows: Any, sizes: Any, count: int) -> list[Any]:
    """Return parts of rows, of sizes that only the run tells."""
    if count == 1:
        return [rows]
    parts = list(op.Split(rows, sizes, axis=0, num_outputs=count))
    # the exporter asks for the attribute to count the results; the operator takes it or the sizes
    parts[0].producer().attributes.pop("num_outputs")
    return parts


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translation, where a model has brought transformers' operator along."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return {}
    return {torch.ops.transformers.grouped_mm_fallback.default: grouped_mm}
