"""Which variance a hand-written BatchNorm uses in training, where it differs from the stock module's.

In evaluation every BatchNorm is one affine map, so that a graph does not show it. torch.nn.BatchNorm normalizes a
batch with its biased variance (divided by n) and puts the unbiased one (n - 1) into the running average; an author may
use one of them for both. It is measured: the layer alone is run in training mode on batches of two sizes.

* The slope of its output over its input is g / sqrt(r v + e), with v the biased variance and r = n / (n - c) for
  correction c. On large inputs e is lost, and slope times sqrt(v) at two sizes tells c, whatever g is.
* The update of its running variance tells the correction of what is kept (``nn.population.measured_correction``).

The model is given back bit for bit, statistics included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from normdeploy.errors import ModelError
from normdeploy.exporting.eager import uncompiled
from normdeploy.exporting.module.forward import split_arguments
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.module.mode_flags import training_flags
from normdeploy.inspection.findings import Finding
from normdeploy.nn.population import measured_correction
from normdeploy.nn.sites import StatisticsSite, observed, statistics_sites
from normdeploy.nn.unregistered import set_mode

_BATCHES = (2, 8)
_LARGE = 1e4
_FIELD = 4  # sizes of averaged axes but the batch are cut to this: a correction of 1 in thousands would not show
_ALIKE = 1e-5


def training_conventions(model: nn.Module, args: Any) -> Iterator[Finding]:
    """Yield the hand-written batch normalizations whose training uses other variances than torch.nn.BatchNorm's.

    Args:
        model: in any mode; given back as it was.
        args: example arguments, which tell the shape of each layer's input.
    """
    # torch's own, and ours, whose conventions are chosen by name, need no measuring
    sites = [site for site in statistics_sites(model) if site.correction is None]
    if not sites:
        return
    inputs: dict[str, Tensor] = {}

    def see(site: StatisticsSite, x: Tensor, *_: Tensor) -> None:
        inputs.setdefault(site.path, x.detach())

    positional, named = split_arguments(model, args, None)
    with torch.random.fork_rng(), uncompiled(), evaluation_mode(model), observed(sites, see):
        model(*positional, **named)
    for site in sites:
        if site.path in inputs:
            found = _measure(model, site, inputs[site.path])
            if found is not None and found != (0.0, 1.0):
                yield _finding(site, *found, _count(site, inputs[site.path]))


def _measure(model: nn.Module, site: StatisticsSite, x: Tensor) -> tuple[float, float] | None:
    """Return the corrections of the variance that normalizes and of the one that is kept; None if they do not show.

    A layer that does not run alone, on other batch sizes, or that updates by another rule, cannot be measured.
    """
    try:
        site.axes = site.read_axes(x)
    except ModelError:
        return None  # statistics per row: told as running-layernorm
    for cut in (True, False):
        # the author's code on inputs it was not written for: whatever it raises, it cannot be measured
        with suppress(Exception):
            products: list[tuple[int, Tensor]] = []
            kept: list[float] = []
            for size in _BATCHES:
                batch = _batch(site, x, size, cut=cut)
                products.append(_run(model, site, batch, kept))
            normalizing = _normalizing(products)
            if normalizing is not None and len(set(kept)) == 1:
                return normalizing, kept[0]
    return None


def _batch(site: StatisticsSite, x: Tensor, size: int, *, cut: bool) -> Tensor:
    averaged = site.axes or ()
    sizes = [min(dim, _FIELD) if cut and axis in averaged else dim for axis, dim in enumerate(x.shape)]
    sizes[0] = size
    generator = torch.Generator().manual_seed(size)
    return (_LARGE * torch.randn(sizes, generator=generator, dtype=torch.float64)).to(x.device)


def _run(model: nn.Module, site: StatisticsSite, batch: Tensor, kept: list[float]) -> tuple[int, Tensor]:
    """Run one layer in training mode; return n and slope times sqrt(v) per channel; append what it keeps."""
    averaged = site.axes or ()
    flags = list(training_flags(site.owner))  # modes under other names, as the user handed them over
    with evaluation_mode(model), torch.enable_grad():  # on leaving, everything is what it was
        for flag in flags:
            setattr(site.owner, flag.name, flag.value)
        if isinstance(site.owner, nn.Module):
            set_mode(site.owner, True)
        elif hasattr(site.owner, "training"):
            site.owner.training = True
        before = site.mean.clone(), site.variance.clone()
        run = site.owner if callable(site.owner) else site.owner.forward
        y = run(batch).detach()
        kept.append(measured_correction(site, batch, *before))
    centred = batch - batch.mean(averaged, keepdim=True)
    power = centred.square()
    slope = (centred * y).sum(averaged) / power.sum(averaged)
    count = batch.numel() // slope.numel()
    return count, slope * power.mean(averaged).sqrt()


def _normalizing(products: list[tuple[int, Tensor]]) -> float | None:
    """Return the correction that explains slope times sqrt(v) = g sqrt((n - c) / n) at both sizes."""
    (small, first), (large, second) = products
    alive = second.abs() > 1e-3 * second.abs().max()
    ratio = first[alive] / second[alive]
    for correction in (0.0, 1.0):
        expected = ((small - correction) / small * large / (large - correction)) ** 0.5
        if bool((ratio / expected - 1).abs().max() < _ALIKE):
            return correction
    return None


def _count(site: StatisticsSite, x: Tensor) -> int:
    """Return how many values one statistic averages in the example."""
    count = 1
    for axis in site.axes or ():
        count *= x.shape[axis]
    return count


def _finding(site: StatisticsSite, normalizing: float, kept: float, count: int) -> Finding:
    words = {0.0: "n", 1.0: "n - 1"}
    differs = f"torch.nn.BatchNorm normalizes with n and keeps n - 1; with the example's n = {count} the two differ by "
    return Finding(
        "note",
        "training-variance",
        site.path,
        f"in training it normalizes with a variance divided by {words[normalizing]} and keeps a running one divided by "
        f"{words[kept]}; {differs}{1 / (count - 1) if count > 1 else 1:.2g} of the variance",
        "nothing for deployment, what it holds is exported; to train on with the same convention use "
        f"normdeploy.nn.BatchNorm(correction={normalizing:.0f}, running_correction={kept:.0f})",
        detail={"correction": normalizing, "running_correction": kept, "count": count},
    )
