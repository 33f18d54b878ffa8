"""Reduced precision: what converting the weights costs, kept apart from whether the file computes them rightly.

The file's own graph in float64, its rounded or quantized weights taken as they are, is the reference of the verdict:
logic and rounding are judged against it. How far that reference lies from the original is the conversion loss. It is
judged against the budget its user gave, on their data where there is some, and never mixed with the float32 verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.budget import Budget
from normdeploy.graph import constant_tensor
from normdeploy.verification.check_context import Context
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Loss
from normdeploy.verification.samples.family import Kind
from normdeploy.verification.sides.two_sides import Reference


def lowest_precision(model: ir.Model) -> str:
    """Return the lowest float dtype among a graph's weights: "float32", "float16" or "bfloat16"."""
    dtypes = {v.const_value.dtype for v in model.graph.initializers.values() if v.const_value is not None}
    if ir.DataType.BFLOAT16 in dtypes:
        return "bfloat16"
    return "float16" if ir.DataType.FLOAT16 in dtypes else "float32"


_NARROW = frozenset({
    ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4,
})  # fmt: skip


def narrower_weights(context: Context) -> str:
    """Return a clause on weights of the file in formats that the reference has none in; "" where there are none."""
    reference = set() if context.reference.graph is None else _formats(context.reference.graph)
    found = sorted(dtype.name.lower() for dtype in (_formats(context.subject.model) & _NARROW) - reference)
    if context.reduced or not found:
        return ""
    return (
        f"the file holds weights in {' and '.join(found)}: with a budget (budget=, --budget rel=1e-2) it is judged "
        "against these weights, and what they cost against the budget"
    )


def _formats(model: ir.Model) -> set[ir.DataType]:
    """Return the formats of a graph's constants of more than one number; scales and zero points are none."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    tensors += [constant_tensor(node.outputs[0]) for node in model.graph if node.op_type == "Constant"]
    return {tensor.dtype for tensor in tensors if tensor is not None and tensor.size > 1}


def check_conversion(
    context: Context, original: Reference, dtypes: Mapping[str, np.dtype[Any]], budget: Budget
) -> list[Check]:
    """Measure the loss on the user's data (all families without any) and hold it against the budget.

    Args:
        context: its reference is the file's own graph. original: what was converted.
        dtypes: input dtypes of the original. budget: what it may cost.
    """
    users = [case for case in context.cases if case.family.kind is Kind.DATA]
    cases = users or [case for case in context.cases if case.family.kind in (Kind.EXAMPLE, Kind.NORMAL)]
    if not users:
        context.not_checked.append("conversion loss on your own data (none was given)")
    losses: list[float] = []
    weights: list[int] = []
    for case in cases:
        feeds = {k: np.asarray(v).astype(dtypes[k]) for k, v in case.family.feeds.items()}
        with original.ready():
            truth = original.truth(feeds)
        losses.append(budget.loss(case.truth, truth))
        weights.append(max(int(np.shape(truth[0])[0]) if np.ndim(truth[0]) else 1, 1))
    # rows are counted over all inputs; a relative error is that of the worst of them
    loss = float(np.average(losses, weights=weights)) if budget.metric == "top1" else _worst(losses)
    where = "your data" if users else "random inputs"
    status = Status.PASS if loss <= budget.limit else Status.FAIL
    text = f"converting the weights to lower precision costs {budget.in_words(loss)} on {where}; the budget is {budget}"
    return [Check(Question.CONVERSION, status, text, Loss(loss, budget.limit))]


def _worst(losses: list[float]) -> float:
    return float(np.max(losses)) if losses else float("nan")
