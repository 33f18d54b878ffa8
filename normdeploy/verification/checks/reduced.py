"""Reduced precision: what converting the weights costs, kept apart from whether the file computes them rightly.

The file's own graph in float64, its rounded or quantized weights taken as they are, is the reference of the verdict:
logic and rounding are judged against it. How far that reference lies from the original is the conversion loss. It is
judged against the budget its user gave, on their data where there is some, and never mixed with the float32 verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.errors import UsageError
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.cases import Case
from normdeploy.verification.context import Context
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.reference import Reference
from normdeploy.verification.sides.structure import is_float
from normdeploy.verification.sides.values import Array


@dataclass(frozen=True)
class Budget:
    """What a conversion may cost.

    Args:
        kind: "rel" (RMS of the difference over RMS of the value) or "top1" (share of rows whose argmax changes).
        limit: largest value allowed, as a fraction.
    """

    kind: str
    limit: float

    def __str__(self) -> str:
        return f"rel={self.limit:g}" if self.kind == "rel" else f"top1={100 * self.limit:g}%"


def parse_budget(text: str) -> Budget:
    """Parse ``rel=1e-2`` or ``top1=0.5%``.

    Raises:
        UsageError: it is neither.
    """
    kind, _, value = text.partition("=")
    try:
        limit = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    if kind not in ("rel", "top1") or not 0 <= limit < 1:
        raise UsageError(f"budget is {text!r}; expected rel=1e-2 or top1=0.5% (a share below 1)")
    return Budget(kind, limit)


def lowest_precision(model: ir.Model) -> str:
    """Return the lowest float dtype among a graph's weights: "float32", "float16" or "bfloat16"."""
    dtypes = {v.const_value.dtype for v in model.graph.initializers.values() if v.const_value is not None}
    if ir.DataType.BFLOAT16 in dtypes:
        return "bfloat16"
    return "float16" if ir.DataType.FLOAT16 in dtypes else "float32"


def check_conversion(
    context: Context, original: Reference, dtypes: Mapping[str, np.dtype[Any]], budget: Budget
) -> list[Check]:
    """Measure the loss on the user's data (all families without any) and hold it against the budget.

    Args:
        context: its reference is the file's own graph. original: what was converted.
        dtypes: input dtypes of the original. budget: what it may cost.
    """
    users = [case for case in context.cases if case.family.user and case.family.name != "example"]
    cases = users or [case for case in context.cases if case.family.name in ("example", "normal")]
    if not users:
        context.not_checked.append("conversion loss on your own data (none was given)")
    losses: list[float] = []
    weights: list[int] = []
    for case in cases:
        feeds = {k: np.asarray(v).astype(dtypes[k]) for k, v in case.family.feeds.items()}
        with original.ready():
            truth = original.truth(feeds)
        losses.append(_loss(case, truth, budget))
        weights.append(max(int(np.shape(truth[0])[0]) if np.ndim(truth[0]) else 1, 1))
    loss = float(np.average(losses, weights=weights)) if budget.kind == "top1" else max(losses, default=float("nan"))
    shown = f"{100 * loss:.3g} % of rows" if budget.kind == "top1" else f"{loss:.3g} relative"
    where = "your data" if users else "random inputs"
    status = Status.PASS if loss <= budget.limit else Status.FAIL
    text = f"converting the weights to lower precision costs {shown} on {where}; the budget is {budget}"
    return [Check(Question.CONVERSION, status, text, {"loss": loss, "limit": budget.limit})]


def _loss(case: Case, truth: list[Array], budget: Budget) -> float:
    """Return the loss of one case: the file's own float64 outputs against the original's."""
    worst = 0.0
    for y, c in zip(truth, case.truth, strict=True):
        if y.shape != c.shape:
            return float("inf")
        if not is_float(y) or not y.size:
            continue
        if budget.kind == "rel":
            keep = np.isfinite(y) & np.isfinite(c)
            worst = max(worst, rms(c[keep] - y[keep]) / (rms(y[keep]) or 1.0))
        elif y.ndim:
            worst = max(worst, float(np.mean(y.argmax(-1) != c.argmax(-1))))
    return worst
