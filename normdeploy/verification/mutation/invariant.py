"""Mutants that cancel behind their site: a change that no output can show, because the network does not depend on it.

A pooled mixer subtracts x from its average over x; the shift of the norm in front of it is in both. With and without
that shift the network is one function. No check can tell the two apart, and none need.

A dead path shows no difference either, and there a wrong site would be seen once other inputs revive it. So a mutant
counts as cancelling only where the path is alive: fed at the site with rows of every family, its own change moves no
output beyond float64's rounding, while a change of the same entries by the same amounts and random signs moves one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.graph import Evaluator
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.bounds.criteria import finite_alike, rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import Effort
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.rerun import Target, downstream
from normdeploy.verification.samples.families import small_spread_first
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.exact_agreement import is_float

_CANCELLED = 1e-11
"""Largest change of an output's element over its channel's RMS: float64's rounding through a deep network, and four
orders below one rounding in float32."""

_ALIVE = 1e-6
"""Least change, so measured, by which random signs show that the path is alive."""

_ALIVE_FAMILIES = 3

_DEAD_FAMILIES = 4
"""A path that none of the first families revives is taken for dead: small spreads and N(0, 1) are among them."""

_LEAST = float(np.finfo(np.float32).tiny)
"""Below this float32 loses its digits, and runtimes take it for 0: no file shows what is changed of such rows alone."""

_SEED = 91
"""Added to the verdict's seed, so that what is fed here is nobody else's."""


def find_cancelling(context: Context, targets: Sequence[Target]) -> None:
    """Spare the survivors of one site of the main graph whose changes cancel behind it, whatever the site reads.

    Args:
        context: what is run here counts as work of its. targets: all of one site and graph; each family is run once
            for them all.
    """
    evaluator, site, case = targets[0].evaluator, targets[0].site, context.cases[0]
    entry = site.inputs[0]
    feeds = dict(case.family.feeds)
    if not entry:
        return
    context.effort.spend(1, feeds)
    with torch.no_grad():
        value = evaluator.run(feeds, fetch=[entry])[entry]
    if not value.is_floating_point() or value.dim() < 2:
        return
    spec, seed = InputRange(entry, np.dtype(np.float32), tuple(value.shape), {}), context.seed + _SEED
    asked = [_Asked(target, torch.Generator().manual_seed(seed)) for target in targets]
    beside = _read_beside(evaluator.graph, site.output)
    for family in small_spread_first(spec, seed, site.epsilon or 1e-5):
        x = torch.from_numpy(family.feeds[entry].astype(np.float64))
        if x.numel() and 0 < float(x.abs().max()) < _LEAST:
            continue
        fed = _Fed(evaluator, feeds, site, x, beside, context.effort)
        asked = [a for a in asked if a.goes_on(fed)]
        if not asked:
            return
    for one in asked:
        one.conclude()


class _Asked:
    """One survivor, and what the families fed so far say of it.

    Args:
        target: the survivor. generator: of the signs that its change gets for comparison.
    """

    def __init__(self, target: Target, generator: torch.Generator) -> None:
        self._target, self._generator = target, generator
        self._worst, self._alive, self._tried, self._weakest = 0.0, 0, 0, float("inf")
        self._waiting: list[tuple[_Fed, Tensor]] = []

    def goes_on(self, fed: _Fed) -> bool:
        """Take in one family; False where it, or all so far, leave nothing to be shown."""
        right, wrong = fed.site_output, self._target.mutant.apply(fed.values)
        if wrong.shape != right.shape or not bool(torch.isfinite(wrong).all()):
            return False
        change = wrong - right
        signs = torch.randint(0, 2, change.shape, generator=self._generator).to(change.dtype) * 2 - 1
        control = fed.moved(right + change * signs)
        if control >= _ALIVE:
            self._alive, self._weakest = self._alive + 1, min(self._weakest, control)
        self._tried += 1
        self._waiting.append((fed, right + change))
        if not self._alive:  # what a dead path makes of the change itself is of no use
            return self._tried < _DEAD_FAMILIES
        self._worst = max(self._worst, *(each.moved(wrong) for each, wrong in self._waiting))
        self._waiting.clear()
        return self._worst <= _CANCELLED

    def conclude(self) -> None:
        """Spare the survivor where enough families showed the path alive."""
        if self._alive < _ALIVE_FAMILIES:
            return
        self._target.spare(
            "undetectable and harmless here: its change cancels behind the site. With rows of "
            f"{self._tried} families fed there it moves no output by more than {self._worst:.1g} of its size; as large "
            f"a change of random signs moves one by {self._weakest:.1g} or more in {self._alive} of them"
        )


class _Fed:
    """A graph run with a value of ours in place of what a site reads; afterwards only what lies behind the site is.

    Args:
        x: the value, float64. beside: see :func:`_read_beside`. effort: what the runs are counted by.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        feeds: dict[str, Array],
        site: Site,
        x: Tensor,
        beside: tuple[set[str], float],
        effort: Effort,
    ) -> None:
        self._evaluator, self._feeds, self._output, self._effort = evaluator, feeds, site.output, effort
        others = [name for name in site.inputs[1:] if name]
        kept, self._share = beside[0] - {*evaluator.graph.initializers, *feeds}, beside[1]
        names = list(dict.fromkeys([*others, *evaluator.output_names, *sorted(kept)]))
        effort.spend(1, feeds)
        with torch.no_grad():
            found = evaluator.run(feeds, replace={site.inputs[0]: x}, fetch=names)
            self.values = [x, *(found[name] if name else None for name in site.inputs[1:])]
            self.site_output = site.clean(self.values)
        self._right = [to_numpy(found[name]) for name in evaluator.output_names]
        self._kept = {site.inputs[0]: x} | {name: found[name] for name in kept}

    def moved(self, wrong: Tensor) -> float:
        """Return the largest relative change of an output with another value as the site's output; infinite for ids."""
        self._effort.spend(self._share, self._feeds)
        with torch.no_grad():
            found = self._evaluator.run(self._feeds, replace=self._kept | {self._output: wrong})
        pairs = zip(self._right, (to_numpy(found[name]) for name in self._evaluator.output_names), strict=True)
        return max((_relative(a, b) for a, b in pairs), default=0.0)


def _read_beside(graph: ir.Graph, output: str) -> tuple[set[str], float]:
    """Return what operators behind a value read that does not depend on it, and their share of all operators."""
    behind = downstream(graph, output)
    nodes = [node for node in graph if any(value.name in behind and value.name != output for value in node.outputs)]
    read = {str(value.name) for node in nodes for value in node.inputs if value is not None}
    return read - behind, len(nodes) / max(len(graph), 1)


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
