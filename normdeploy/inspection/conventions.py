"""Conventions of statistics-computing norms that differ from the stock module an author may believe equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.inspection.findings import Finding
from normdeploy.inspection.stored_statistics import check_epsilon
from normdeploy.rewrite.ledger import LedgerRow

_STOCK = {
    "LayerNormalization": "torch.nn.LayerNorm",
    "RMSNormalization": "torch.nn.RMSNorm",
    "GroupNormalization": "torch.nn.GroupNorm",
    "InstanceNormalization": "torch.nn.InstanceNorm",
}
# these operators hold epsilon as a float32 attribute and compute statistics in float32 whatever the data's type
_IN_FLOAT32 = frozenset({"LayerNormalization", "RMSNormalization"})


def check_conventions(row: LedgerRow, values: Mapping[str, ir.Value]) -> Iterator[Finding]:
    """Yield what is particular about one recognised statistics-computing norm.

    Args:
        row: from the recognition; its detail holds axes, epsilon (in the units of the biased variance) and whether
            epsilon is outside the root.
        values: the graph's values by name.
    """
    detail = row.detail
    if "epsilon" not in detail:
        return
    stock = _STOCK.get(row.kind, row.kind)
    x = values.get(str(detail["x"]))
    count = _count(detail, x)
    epsilon = float(detail["epsilon"])
    correction = _has_correction(detail, epsilon, count)
    if detail["outside"]:
        yield _outside(row, stock, epsilon * _units(count, correction, outside=True))
    if correction:
        yield _unbiased(row, stock, count)
    if detail.get("single_pass"):
        yield Finding(
            "note",
            "single-pass-variance",
            row.where,
            "its variance is E[x^2] - E[x]^2, which loses digits (and may turn negative) where the mean is large "
            "against the spread; the deployed operator takes two passes and is more exact than the model",
            "write the variance as the mean of (x - mean)^2 if training suffers; nothing for deployment",
        )
    if epsilon == 0:
        yield Finding(
            "warning",
            "no-epsilon",
            row.where,
            "it has no epsilon: rows of equal values divide zero by zero, NaN in deployed outputs",
            "add an epsilon (1e-5) to the variance",
        )
    dtype = x.dtype if x is not None and x.dtype is not None else ir.DataType.FLOAT
    if detail.get("operator") and row.kind in _IN_FLOAT32:
        dtype = ir.DataType.DOUBLE  # what float32 holds of it is what the attribute says
    yield from check_epsilon(row.where, epsilon, dtype)


def _outside(row: LedgerRow, stock: str, epsilon: float) -> Finding:
    return Finding(
        "note",
        "outside-root",
        row.where,
        f"it adds epsilon {epsilon:.3g} to the standard deviation, {stock} adds it to the variance: outputs differ by "
        f"about {epsilon:.1g} over a row's standard deviation (all of it where the spread is about {epsilon:.1g})",
        f"nothing for deployment, it is exported exactly; do not exchange it for {stock} with the same weights",
        detail={"epsilon": epsilon},
    )


def _unbiased(row: LedgerRow, stock: str, count: int | None) -> Finding:
    if count is None:
        return Finding(
            "note",
            "unbiased-variance",
            row.where,
            f"its variance is divided by n - 1, that of {stock} by n; n is dynamic",
            "nothing for deployment, it is exported exactly, though not as one operator; do not exchange it for "
            f"{stock} with the same weights",
        )
    return Finding(
        "note",
        "unbiased-variance",
        row.where,
        f"its variance is divided by n - 1 = {count - 1}, that of {stock} by n = {count}: outputs are smaller by "
        f"{1 - np.sqrt((count - 1) / count):.2%}",
        f"nothing for deployment, it is converted exactly; to load its weights into {stock}, multiply the scale by "
        f"sqrt({count - 1}/{count}) and epsilon by {count - 1}/{count}",
        detail={"count": count},
    )


def _count(detail: Mapping[str, Any], x: ir.Value | None) -> int | None:
    """Return the number of values averaged; None where a dimension is not known."""
    if x is None or x.shape is None:
        return None
    dims = [x.shape[axis] for axis in detail["axes"]]
    if not all(isinstance(dim, int) for dim in dims):
        return None
    width = int(detail.get("width") or 1) if detail.get("split") is not None else 1
    return int(np.prod([int(dim) for dim in dims], dtype=np.int64)) * width


def _units(count: int | None, correction: bool, *, outside: bool) -> float:
    if not correction or count is None:
        return 1.0
    ratio = count / (count - 1)
    return float(np.sqrt(ratio)) if outside else ratio


def _has_correction(detail: Mapping[str, Any], epsilon: float, count: int | None) -> bool:
    """Tell whether the variance was divided by n - 1.

    The scale before any affine says so: sqrt((n - 1) / n) in place of 1. Where a trained scale stands in front of it,
    epsilon does: people choose round ones, and the conversion made it e (n - 1) / n.
    """
    if detail.get("correction"):
        return True
    if count is None or count < 2 or not detail["centred"] or detail.get("operator"):
        return False
    bare = detail.get("bare")
    if bare is not None and abs(bare - 1) < 1e-9:
        return False
    if bare is not None and abs(bare * np.sqrt(count / (count - 1)) - 1) < 1e-9:
        return True
    return epsilon > 0 and _digits(epsilon * _units(count, True, outside=bool(detail["outside"]))) < _digits(epsilon)


def _digits(value: float) -> int:
    """Return how many digits a number needs: 0 for a power of ten, then 1, 2, or 3 for more.

    Compared as exactly as the recognition solves for it.
    """

    def close(text: str) -> bool:
        return abs(value / float(text) - 1) < 2e-5

    if close(f"1e{int(np.round(np.log10(value)))}"):
        return 0
    return 1 if close(f"{value:.0e}") else 2 if close(f"{value:.1e}") else 3
