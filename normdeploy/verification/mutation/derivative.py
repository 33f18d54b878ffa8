r"""The first-order effect of every mutant of every site at once, from one backward pass per output direction.

For random signs r over an output y, <r, dy> has mean square |dy|^2. To first order <r, dy> = <J^T r, dx> with dx the
mutant's change of its site's own output, and J^T r comes from one backward pass for all sites. With each output's signs
divided by its rounding bound and the root of its size, all outputs share the passes: the mean square of the products
is the sum over the outputs of (RMS(dy) / bound)^2, so that one of n outputs is beyond the bound by the root of a
n-th of it at least.

An estimate kills only with room to spare, what it leaves near the bound is run exactly (:func:`needed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from normdeploy.verification.bounds.criteria import Bounds, rms
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.mutants import BATCH_NORM, Apply, Mutant, Site, Values
from normdeploy.verification.mutation.rerun import CleanRun

_RANDOM = {1: 7.0, 2: 5.0}
"""How far below what random signs show the effect may lie, by the number of probes: one product exceeds 7 times the
root of its expected square, two together 5 times, with a probability below 1e-10."""

_SMALL = 0.1
"""A change of the site's output, relative to it, up to which second-order terms are taken to be small."""

_SATURATED = 10.0
"""By how much a larger change may do less than its derivative says (an activation saturates, a norm divides it out)."""


def needed(relative: float, probes: int = 2) -> float:
    """Return how many times the bound for a kill an estimate must exceed it to count.

    Args:
        relative: size of the change over that of the site's output (2-norms). probes: backward passes behind it.
    """
    return _RANDOM[probes] * (1.0 if relative <= _SMALL else _SATURATED)


@dataclass(frozen=True)
class Estimate:
    """What a mutant does to the outputs, to first order; nothing where that is not known.

    Args:
        ratio: RMS effect over the rounding bound as far as it is measured, with S = 0 otherwise.
        relative: the change of the site's output over that output.
    """

    ratio: float
    relative: float


class Sensitivities:
    """Gradients of random projections of the outputs at the sites' outputs.

    Args:
        run: a graded run of the graph, in the precision that gradients are wanted in; they are taken at once.
        probes: backward passes. seed: of the signs.
    """

    def __init__(self, run: CleanRun, *, probes: int = 2, seed: int = 0) -> None:
        self.case = case = run.case
        self._sums: dict[str, ChannelSums] = {}
        outputs = run.results
        self._bounds = {
            i: _rms_bound(case.bounds(i, spread=False))
            for i, y in enumerate(outputs)
            if y.is_floating_point() and y.requires_grad and y.numel()
        }
        generator = torch.Generator().manual_seed(seed)
        self.gradients: list[dict[str, Tensor]] = []
        for probe in range(probes if self._bounds else 0):
            signs = {i: self._signs(i, outputs[i], generator) for i in self._bounds}
            self.gradients.append(run.gradients(signs, last=probe == probes - 1))

    def _signs(self, index: int, y: Tensor, generator: torch.Generator) -> Tensor:
        signs = torch.randint(0, 2, y.shape, generator=generator).to(y.dtype).mul_(2).sub_(1)
        signs.mul_(1 / (self._bounds[index] * math.sqrt(y.numel())))
        return torch.where(y.isfinite(), signs, 0.0)

    def estimate(self, site: Site, mutant: Mutant, values: Values, clean: Tensor) -> Estimate:
        """Return a mutant's effect.

        Args:
            values: what the site reads. clean: its right output.
        """
        gradients = [g[site.output] for g in self.gradients if site.output in g]
        if not gradients:
            return Estimate(0.0, 0.0)
        with torch.no_grad():
            if mutant.affine and site.node.op_type == BATCH_NORM:
                if site.output not in self._sums:
                    self._sums[site.output] = ChannelSums(gradients, values, site, clean)
                products, relative = self._sums[site.output].of(*affine_map(mutant.apply, values))
            else:
                change = mutant.apply(values) - clean
                products = [float((g * change).sum()) for g in gradients]
                relative = float(change.norm()) / max(float(clean.norm()), 1e-300)
        effect = math.sqrt(sum(p * p for p in products) / len(products) / len(self._bounds))
        if not math.isfinite(effect) or not math.isfinite(relative):
            return Estimate(0.0, 0.0)
        return Estimate(effect, relative)

    @cached_property
    def wider(self) -> float:
        """The bounds that an estimate's ratio is taken over, over those with S, in whichever output least."""
        return self._least(self.case.bounds)

    @cached_property
    def coarser(self) -> float:
        """The same over the float64 chain's bounds without the parts that take runs of their own."""
        return 0.0 if self.case.chain is None else self._least(partial(Case.chain_bounds, self.case, spread=False))

    @cached_property
    def finer(self) -> float:
        """The same over the float64 chain's bounds."""
        return 0.0 if self.case.chain is None else self._least(partial(Case.chain_bounds, self.case))

    def _least(self, bounds: Callable[[int], Bounds]) -> float:
        return min((bound / _rms_bound(bounds(i)) for i, bound in self._bounds.items()), default=0.0)


def affine_map(apply: Apply, values: Values) -> tuple[Tensor, Tensor]:
    """Return scale and shift, per channel (axis 1), of what is an affine map of the first value."""
    x = values[0]
    assert x is not None
    nought_and_one = torch.tensor([0.0, 1.0], dtype=x.dtype).reshape(2, *(1,) * (x.dim() - 1))
    found = apply([nought_and_one.expand(2, x.shape[1], *(1,) * (x.dim() - 2)), *values[1:]])
    return (found[1] - found[0]).reshape(-1), found[0].reshape(-1)


class ChannelSums:
    """What products of a gradient with a change of an affine map of x need: sums over each channel.

    Args:
        gradients: to be multiplied with. values: what the site reads. site: an affine map. clean: its output.
    """

    def __init__(self, gradients: Sequence[Tensor], values: Values, site: Site, clean: Tensor) -> None:
        x = values[0]
        assert x is not None
        self._right = affine_map(site.clean, values)
        over = [axis for axis in range(x.dim()) if axis != 1]
        single = x.to(gradients[0].dtype)
        self._products = [((g * single).sum(over, dtype=x.dtype), g.sum(over, dtype=x.dtype)) for g in gradients]
        self._first, self._second = x.sum(over), x.square().sum(over)
        self._count = x.numel() / x.shape[1]
        self._size = max(float(clean.norm()), 1e-300)

    def of(self, scale: Tensor, shift: Tensor) -> tuple[list[float], float]:
        """Return the products of the change to scale * x + shift with each gradient, and its size over the output's."""
        scale, shift = scale - self._right[0], shift - self._right[1]
        square = scale.square() * self._second + 2 * scale * shift * self._first + shift.square() * self._count
        relative = math.sqrt(max(float(square.sum()), 0.0)) / self._size
        return [float((scale * gx).sum() + (shift * g).sum()) for gx, g in self._products], relative


def _rms_bound(bounds: Bounds) -> float:
    spread = max(rms(bounds.eager), rms(bounds.spread))
    return bounds.constants.rms * spread + bounds.roundoff * rms(bounds.truth) + bounds.floor
