"""Mutants that cancel behind their site: a change that no output can show, because the network does not depend on it.

A pooled mixer subtracts x from its average over x; the shift of the norm in front of it is in both. With and without
that shift the network is one function. No check can tell the two apart, and none need.

A dead path shows no difference either, and there a wrong site would be seen once other inputs revive it. So a mutant
counts as cancelling only where the path is alive: fed at the site with rows of every family, its own change moves no
output beyond float64's rounding, while a change of the same entries by the same amounts and random signs moves one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.graph import Evaluator
from normdeploy.verification.bounds.criteria import finite_alike, rms
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.mutants import Mutant, Site
from normdeploy.verification.samples.families import small_spread_first
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import to_numpy

_CANCELLED = 1e-11
"""Largest change of an output's element over its channel's RMS: float64's rounding through a deep network, and four
orders below one rounding in float32."""

_ALIVE = 1e-6
"""Least change, so measured, by which random signs show that the path is alive."""

_ALIVE_FAMILIES = 3

_DEAD_FAMILIES = 4
"""A path that none of the first families revives is taken for dead: small spreads and N(0, 1) are among them."""


def cancels(evaluator: Evaluator, case: Case, site: Site, mutant: Mutant, *, seed: int) -> str:
    """Return in a sentence that a mutant changes no output for whatever the site reads; "" where that is not shown.

    Args:
        evaluator: of the graph that the site is in. case: gives the other inputs, and the site's shape.
        site, mutant: what survived. seed: of the rows fed and of the signs.
    """
    entry = site.inputs[0]
    feeds = dict(case.family.feeds)
    if not entry:
        return ""
    with torch.no_grad():
        value = evaluator.run(feeds, fetch=[entry])[entry]
    if not value.is_floating_point() or value.dim() < 2:
        return ""
    spec = InputRange(entry, np.dtype(np.float32), tuple(value.shape), {})
    generator = torch.Generator().manual_seed(seed)
    worst, alive, tried, weakest = 0.0, 0, 0, float("inf")
    for family in small_spread_first(spec, seed, site.epsilon or 1e-5):
        fed = _Fed(evaluator, feeds, site, torch.from_numpy(family.feeds[entry].astype(np.float64)))
        right, wrong = fed.site_output, mutant.apply(fed.values)
        if wrong.shape != right.shape or not bool(torch.isfinite(wrong).all()):
            return ""
        change = wrong - right
        signs = torch.randint(0, 2, change.shape, generator=generator).to(change.dtype) * 2 - 1
        worst = max(worst, fed.moved(right + change))
        if worst > _CANCELLED:
            return ""
        control = fed.moved(right + change * signs)
        if control >= _ALIVE:
            alive, weakest = alive + 1, min(weakest, control)
        tried += 1
        if tried >= _DEAD_FAMILIES and not alive:
            return ""
    if alive < _ALIVE_FAMILIES:
        return ""
    return (
        "undetectable and harmless here: its change cancels behind the site. With rows of "
        f"{tried} families fed there it moves no output by more than {worst:.1g} of its size; as large a change of "
        f"random signs moves one by {weakest:.1g} or more in {alive} of them"
    )


class _Fed:
    """A graph run with a value of ours in place of what a site reads.

    Args:
        x: the value, float64.
    """

    def __init__(self, evaluator: Evaluator, feeds: dict[str, Array], site: Site, x: Tensor) -> None:
        self._evaluator, self._feeds, self._site, self._x = evaluator, feeds, site, x
        others = [name for name in site.inputs[1:] if name]
        names = list(dict.fromkeys([*others, *evaluator.output_names]))
        with torch.no_grad():
            found = evaluator.run(feeds, replace={site.inputs[0]: x}, fetch=names)
            self.values = [x, *(found[name] if name else None for name in site.inputs[1:])]
            self.site_output = site.clean(self.values)
        self._right = [to_numpy(found[name]) for name in evaluator.output_names]

    def moved(self, wrong: Tensor) -> float:
        """Return the largest relative change of an output with another value as the site's output; infinite for ids."""
        replace = {self._site.inputs[0]: self._x, self._site.output: wrong}
        with torch.no_grad():
            found = self._evaluator.run(self._feeds, replace=replace)
        pairs = zip(self._right, (to_numpy(found[name]) for name in self._evaluator.output_names), strict=True)
        return max((_relative(a, b) for a, b in pairs), default=0.0)


def _relative(right: Array, wrong: Array) -> float:
    """Return the largest |wrong - right| over the size of its channel (axis 1)."""
    if not is_float(right):
        return 0.0 if np.array_equal(right, wrong) else float("inf")
    if not finite_alike(right, wrong):
        return float("inf")
    if not right.size:
        return 0.0
    keep = np.isfinite(right) & np.isfinite(wrong)
    a, difference = np.where(keep, right, 0.0), np.where(keep, wrong, 0.0) - np.where(keep, right, 0.0)
    rows = (np.moveaxis(x, 1, 0).reshape(x.shape[1], -1) if x.ndim > 1 else x.reshape(1, -1) for x in (a, difference))
    return max((float(np.abs(d).max(initial=0.0)) / (rms(y) or 1.0) for y, d in zip(*rows, strict=True)), default=0.0)
