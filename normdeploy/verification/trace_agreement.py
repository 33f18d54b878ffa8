"""One family's truth against the traced graph in float64, within what the rounding of stored constants explains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from normdeploy.array_types import Array
from normdeploy.verification.bounds.criteria import judge, relative_rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.float64_chain import Chain
from normdeploy.verification.moved_constants import MovedConstants
from normdeploy.verification.sides.exact_agreement import is_float, nonfinite_problems


def hold_trace(context: Context, case: Case, constants: MovedConstants) -> float:
    """Hold the traced graph in float64 against the module's truth on one family; the case has its chain from then on.

    Args:
        constants: of the traced graph, which storing may have moved.

    Returns:
        the worst ratio of difference to bound of a float output; at most 1 where rounding of the constants explains it.

    Raises:
        GraphError: the traced graph cannot be evaluated there.
    """
    traced = context.traced(case)
    case.chain = Chain(traced, constants.spreads(case.family.feeds, traced), constants.enough)
    pairs = enumerate(zip(traced, case.truth, strict=True))
    worst = max((_ratio(case, i, y) for i, (y, truth) in pairs if is_float(y) and y.shape == truth.shape), default=0.0)
    outputs = zip(case.truth, traced, strict=True)
    case.chain.resolution += [relative_rms(truth, y) if is_float(truth) else 0.0 for truth, y in outputs]
    return worst


def _ratio(case: Case, index: int, y: Array) -> float:
    """Return how many times the chain's bound the traced graph's output is away; elements that ties turn aside."""
    assert case.chain is not None
    ratio = _judged(case, index, y, spread=False)
    if ratio > 1:
        ratio = _judged(case, index, y, spread=True)
    while 1 < ratio < math.inf and case.chain.measure():  # no more runs than it takes: the spread only grows
        ratio = _judged(case, index, y, spread=True)
    if ratio > 1 and not case.rounding.measured:
        case.spread  # noqa: B018 # measured: eager's error may be small by chance
        ratio = _judged(case, index, y, spread=True)
    if ratio > 1 and case.noisy is not None and case.noisy.decides:
        if case.undecided(index):
            return 0.0
        ratio = _judged(case, index, np.where(case.ties(index), case.truth[index], y), spread=True)
    return ratio


def _judged(case: Case, index: int, y: Array, *, spread: bool) -> float:
    if nonfinite_problems(case.truth[index], case.eager[index], y, case.names[index])[0]:
        return float("inf")
    bounds = case.chain_bounds(index, spread=spread, least=True)
    keep = bounds.keep & np.isfinite(y)
    return judge(np.where(keep, y, 0.0), replace(bounds, keep=keep)).ratio
