"""What quantization costs: the reference against itself without its quantizers, as a number with an interval.

It judges nothing: what may be lost is the user's to say. It is measured on the user's rows where there are some.
"""

from __future__ import annotations

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.intervals import error_parts, largest_error, resampled
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import SINGLE
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import QuantizersCost
from normdeploy.verification.samples.family import Kind
from normdeploy.verification.sides.graph_reference import GraphReference
from normdeploy.verification.sides.two_sides import EagerReference, Refused

_MADE_UP = 2
"""Families of made-up rows, the example first, that stand in where there are no rows of the user's."""


def check_quantization(context: Context) -> list[Check]:
    """Say how far the quantizers move the outputs of the reference."""
    reference = context.reference
    if not isinstance(reference, (EagerReference, GraphReference)):
        return []
    mine = [case for case in context.cases if case.family.kind is Kind.DATA]
    parts = []
    for case in mine or context.cases[:_MADE_UP]:
        try:
            whole = reference.unquantized(case.family.feeds)
        except (Refused, GraphError) as error:
            context.not_checked.append(f"the loss of quantization: {error}")
            return []
        if whole is None or any(np.ndim(array) == 0 or len(array) != len(whole[0]) for array in whole):
            return []
        if [np.shape(array) for array in whole] != [np.shape(array) for array in case.truth]:
            return []  # what is found and counted is other rows without them
        context.effort.spend(SINGLE, case.family.feeds)
        parts.append(error_parts(case.truth, whole))
    rows = np.concatenate(parts)
    if not rows.any() or not np.isfinite(rows).all():
        return []
    found = resampled(largest_error, rows)
    text = (
        f"quantization moves the outputs by {found.words('.2%')} of their size, 95 % interval over {len(rows)} "
        f"{'rows of yours' if mine else 'made-up rows'}: the reference against itself without its quantizers; weights "
        "stored as integers stay what these stand for"
    )
    measured = QuantizersCost(found.value, found.low, found.high, rows=len(rows), user=bool(mine))
    return [Check(Question.QUANTIZATION, Status.NOTE, text, measured)]
