"""Population statistics: what a BatchNorm should know in evaluation, computed instead of averaged on the way.

The running average and the population statistics are two estimates of the same mean and variance. The average forgets:
it weighs the last few batches, computed while the weights were still moving. One pass over the training data with the
final weights gives the statistics themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from normdeploy.errors import ModelError, UsageError
from normdeploy.nn.inference_tensors import leave_inference
from normdeploy.nn.moments import Moments
from normdeploy.nn.sites import StatisticsSite, observed, statistics_sites
from normdeploy.nn.sync import SyncBatchNorm
from normdeploy.nn.unregistered import mode, walk_objects


@dataclass(frozen=True)
class Recalibrated:
    """What became of one normalization.

    Args:
        path: its path in the network.
        count: number of values each statistic was computed from.
        mean_distance: root mean square, over channels, of (old mean - new mean) / new deviation.
        deviation_distance: root mean square, over channels, of old deviation / new deviation - 1.
    """

    path: str
    count: int
    mean_distance: float
    deviation_distance: float


def recalibrate(model: nn.Module, batches: Iterable[Tensor | Sequence[Tensor]]) -> list[Recalibrated]:
    """Replace running statistics, in place, by exact population statistics of ``batches``, in one pass.

    The pass normalizes with batch statistics, as training did, so that each layer sees what it saw then; everything
    else (dropout) is in evaluation mode. Mean and variance of each normalization's input are pooled exactly in float64
    (:class:`Moments`), whatever the batch sizes, and across all processes where there are many. The variance has the
    correction that the normalization itself keeps; for hand-written ones it is measured from their own first update.

    A batch of one row has no spread: it is joined to the batch before it (the first to the one behind it). Where the
    pass fails, every statistic is put back as it was.

    Args:
        model: the trained network, on the device of the batches; its mode is given back. Where many processes pool
            their data, its BatchNorms should be synchronized (`normdeploy.nn.sync`): else each process normalizes
            with its own share of a batch.
        batches: inputs, or tuples of inputs, of the network, samples along the first axis; the larger the batches, the
            less they differ from each other.

    Returns:
        list[Recalibrated]: one for each normalization, with the distance from the running average to the population.

    Raises:
        ModelError: nothing in the network keeps running statistics, or what keeps them cannot be understood.
        UsageError: there was no batch, or one that leaves a normalization one value per statistic.

    Source:
        Y. Wu, J. Johnson, Rethinking "Batch" in BatchNorm, 2021, section 3 (PreciseBN), there with equally weighted
        batches.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
    >>> found = recalibrate(net, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
    >>> net[0].running_mean
    tensor([4.])
    """
    leave_inference(model)  # what is updated in place must be ordinary tensors
    sites = statistics_sites(model)
    if not sites:
        raise ModelError(f"{type(model).__name__} keeps no running statistics; expected a BatchNorm that tracks them")
    counters = [t for s in sites if (t := getattr(s.owner, "num_batches_tracked", None)) is not None]
    counted = [counter.clone() for counter in counters]
    before = [(site.mean.double().clone(), site.variance.double().clone()) for site in sites]
    moments = {id(site): Moments() for site in sites}

    def see(site: StatisticsSite, x: Tensor, old_mean: Tensor, old_variance: Tensor) -> None:
        if site.axes is None:
            site.axes = site.read_axes(x)
        if site.correction is None:
            site.correction = measured_correction(site, x, old_mean, old_variance)
        moments[id(site)].update(x, site.axes)

    def check(site: StatisticsSite, x: Tensor) -> None:
        axes = site.axes or site.read_axes(x)
        if math.prod(x.shape[d] for d in axes) * _processes_that_share(site) < 2:
            raise UsageError(
                f"{site.path} gets an input of shape {tuple(x.shape)}, one value for each statistic, which has no "
                "spread; expected two or more: use larger batches"
            )

    # hand-written normalizations may take their mode from whether gradients are recorded
    by_hand = any(site.correction is None for site in sites)
    with _put_back_on_failure(model):
        with mode(model, training=False), observed(sites, see, check), torch.set_grad_enabled(by_hand):
            for site in sites:
                if hasattr(site.owner, "training"):
                    site.owner.training = True
            for batch in _without_single_rows(batches):
                model(*batch)
        for counter, value in zip(counters, counted, strict=True):  # it counts training batches: none was trained on
            counter.copy_(value)
        return [_settled(site, moments[id(site)].joined(), *old) for site, old in zip(sites, before, strict=True)]


def _processes_that_share(site: StatisticsSite) -> int:
    """Return over how many processes a normalization joins its batch."""
    joins = isinstance(site.owner, SyncBatchNorm) and dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if joins else 1


@contextmanager
def _put_back_on_failure(model: nn.Module) -> Iterator[None]:
    """Restore, where the block fails, every tensor that is not trained: also those that authors replace by new ones."""
    kept = []
    for _, owner in walk_objects(model):
        held: dict[str, object] = {**vars(owner), **(owner._buffers if isinstance(owner, nn.Module) else {})}
        tensors = {name: value for name, value in held.items() if isinstance(value, Tensor) and not value.requires_grad}
        kept += [(owner, name, tensor, tensor.clone()) for name, tensor in tensors.items()]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for owner, name, tensor, value in kept:
                tensor.set_(value)  # type: ignore[call-overload] # its stub knows storages alone
                if getattr(owner, name) is not tensor:
                    setattr(owner, name, tensor)
        raise


def _without_single_rows(batches: Iterable[Tensor | Sequence[Tensor]]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batches as tuples; one of a single row joined to the one before it, the first to the one behind."""
    held: tuple[Tensor, ...] | None = None
    for batch in batches:
        given = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        if held is not None and (_single(held) or _single(given)) and _join(held, given):
            held = tuple(torch.cat(pair) for pair in zip(held, given, strict=True))
            continue
        if held is not None:
            yield held
        held = given
    if held is not None:
        yield held


def _single(batch: tuple[Tensor, ...]) -> bool:
    return bool(batch) and all(tensor.ndim > 0 and len(tensor) == 1 for tensor in batch)


def _join(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Whether two batches differ in their rows alone; images of another size do not join."""
    pairs = list(zip(one, other, strict=False))
    return len(one) == len(other) and all(a.ndim == b.ndim > 0 and a.shape[1:] == b.shape[1:] for a, b in pairs)


def _settled(site: StatisticsSite, moments: Moments, old_mean: Tensor, old_variance: Tensor) -> Recalibrated:
    """Put the population statistics in and report how far the old ones were."""
    if moments.count == 0:
        raise UsageError(f"{site.path} saw no data; expected at least one batch that reaches it")
    mean, variance = moments.mean, moments.variance(site.correction or 0)
    site.assign(mean, variance)
    mean, deviation = mean.flatten(), variance.flatten().sqrt()
    alive = deviation > 0  # a constant channel has no unit to measure distances in
    far = ((old_mean.flatten() - mean)[alive] / deviation[alive]).square().mean().sqrt()
    wide = (old_variance.flatten().sqrt()[alive] / deviation[alive] - 1).square().mean().sqrt()
    return Recalibrated(site.path, moments.count, float(far), float(wide))


def measured_correction(site: StatisticsSite, x: Tensor, old_mean: Tensor, old_variance: Tensor) -> float:
    """Find out from one update which variance a hand-written normalization keeps: 0 biased, 1 unbiased.

    The update of the mean gives the momentum w, ``new = old + w (batch - old)``; the correction is the one whose
    variance, updated with the same w, is nearest to the new running variance.

    Args:
        site: after the update.
        x: the batch.
        old_mean: running mean before it.
        old_variance: running variance before it.

    Raises:
        ModelError: the update follows no such rule.
    """
    batch = Moments()
    batch.update(x, site.axes or site.read_axes(x))
    new_mean, new_variance = site.mean.double().flatten(), site.variance.double().flatten()
    step = batch.mean.flatten() - old_mean.double().flatten()
    weight = float((new_mean - old_mean.double().flatten()) @ step / (step @ step))

    def miss(correction: float) -> float:
        variance = batch.variance(correction).flatten()
        expected = old_variance.double().flatten() + weight * (variance - old_variance.double().flatten())
        return float(((new_variance - expected) / expected.abs().clamp_min(1e-30)).abs().max())

    missed = {correction: miss(correction) for correction in (0.0, 1.0) if batch.count > correction}
    best = min(missed, key=lambda correction: missed[correction])
    if not missed[best] < 1e-3:
        raise ModelError(
            f"{site.path} updates {site.mean_name} and {site.variance_name} by a rule that is no running average of "
            "batch mean and "
            f"variance (off by {missed[best]:.1e}); expected new = old + w (batch - old): set its statistics by hand"
        )
    return best
