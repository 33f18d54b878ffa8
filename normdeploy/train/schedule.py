"""Learning rate: a linear rise, then half a cosine down to zero."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, *, peak: float, warmup: float) -> float:
    """Return the learning rate of one step.

    ``peak * (step + 1) / rise`` for the first ``rise = round(warmup * steps)`` steps, then
    ``peak * (1 + cos(pi * t)) / 2`` with t running from 0 towards 1.

    Args:
        step: number of the step, from 0.
        steps: how many there are.
        peak: highest learning rate.
        warmup: share of the steps that rise.

    Source:
        I. Loshchilov, F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017, equation 5
        (without restarts).
    """
    rise = round(warmup * steps)
    if step < rise:
        return peak * ((step + 1) / rise)
    # the factor first: it is at most 1, so no rounding can lift the rate above the peak
    return peak * ((1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2)
