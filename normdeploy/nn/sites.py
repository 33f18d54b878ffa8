"""Where a network keeps running statistics of batches, in whatever convention, and how they relate to their input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normdeploy.errors import ModelError
from normdeploy.nn.batchnorm import BatchNorm
from normdeploy.nn.sync import SyncBatchNorm
from normdeploy.nn.unregistered import walk_objects


@dataclass
class StatisticsSite:
    """One object that keeps a running mean and a running variance.

    Args:
        path: dotted path from the network.
        owner: the module or plain object.
        mean_name: attribute that holds the running mean.
        variance_name: attribute that holds the running variance.
        correction: of the variance that is kept; None: to be measured from the object's own first update.
        axes: axes of the input that are averaged over; None: to be read off the shape of the statistics.
    """

    path: str
    owner: Any
    mean_name: str
    variance_name: str
    correction: float | None
    axes: tuple[int, ...] | None = field(default=None)

    @property
    def mean(self) -> Tensor:
        """The running mean held now."""
        held: Tensor = getattr(self.owner, self.mean_name)
        return held.detach()

    @property
    def variance(self) -> Tensor:
        """The running variance held now."""
        held: Tensor = getattr(self.owner, self.variance_name)
        return held.detach()

    def assign(self, mean: Tensor, variance: Tensor) -> None:
        """Put statistics in, in the dtype, shape and place of those held."""
        for name, value in ((self.mean_name, mean), (self.variance_name, variance)):
            held: Tensor = getattr(self.owner, name)
            held.data.copy_(value.reshape(held.shape))

    def read_axes(self, x: Tensor) -> tuple[int, ...]:
        """Return the axes of the input ``x`` that the statistics average over.

        Raises:
            ModelError: the statistics are per row of the batch, or fit no axes of the input.
        """
        if isinstance(self.owner, BatchNorm):
            return self.owner.axes(x)
        shape = tuple(self.mean.shape)
        if len(shape) == x.ndim and shape[0] == 1:
            return tuple(d for d in range(x.ndim) if shape[d] == 1)
        if x.ndim >= 2 and shape == (x.shape[1],):
            return tuple(d for d in range(x.ndim) if d != 1)
        if shape == tuple(x.shape[1:]):
            return (0,)
        raise ModelError(
            f"{self.path} keeps statistics of shape {shape} for inputs of shape {tuple(x.shape)}; expected one per "
            "channel: "
            "statistics per row belong to the last training batch and describe no other data"
        )


See = Callable[[StatisticsSite, Tensor, Tensor, Tensor], None]
Check = Callable[[StatisticsSite, Tensor], None]


def statistics_sites(model: nn.Module) -> list[StatisticsSite]:
    """Find every BatchNorm of torch's and ours that tracks, and every other object with a tensor called ``*mean*``
    beside one called ``*var*`` of the same shape, neither of them trained.
    """
    sites = []
    replaced: set[int] = set()  # what synchronized modules stand for, and hold without calling it
    for path, owner in walk_objects(model):
        if isinstance(owner, SyncBatchNorm):
            replaced.add(id(owner.__dict__.get("_plain_module")))
        if id(owner) in replaced:
            continue
        if isinstance(owner, (nn.modules.batchnorm._BatchNorm, BatchNorm)):
            if owner.running_mean is not None:
                correction = owner.running_correction if isinstance(owner, BatchNorm) else 1
                sites.append(StatisticsSite(path, owner, "running_mean", "running_var", correction))
        elif not isinstance(owner, nn.modules.instancenorm._InstanceNorm):  # its statistics are per sample, averaged
            sites += [StatisticsSite(path, owner, *names, None) for names in _pairs(owner)]
    return sites


def _pairs(owner: object) -> Iterator[tuple[str, str]]:
    held: dict[str, Any] = dict(vars(owner))
    if isinstance(owner, nn.Module):
        held |= owner._parameters | owner._buffers
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor) and not value.requires_grad}
    for name, tensor in tensors.items():
        partner = re.sub("mean", "var", name)
        if "mean" in name and partner in tensors and tensors[partner].shape == tensor.shape:
            yield name, partner


@contextmanager
def observed(sites: list[StatisticsSite], see: See, check: Check = lambda *_: None) -> Iterator[None]:
    """Call ``check(site, input)`` before each call of each site, ``see(site, input, mean, variance)`` after it.

    Mean and variance are those before the call.

    Modules are watched with hooks; plain objects through the ``__call__`` (or ``forward``) of their class, which is put
    back.
    """
    plain: dict[type, dict[int, StatisticsSite]] = {}
    with ExitStack() as stack:
        for site in sites:
            if isinstance(site.owner, nn.Module):
                for handle in _hooks(site, see, check):
                    stack.callback(handle.remove)
            else:
                plain.setdefault(type(site.owner), {})[id(site.owner)] = site
        for kind, mine in plain.items():
            stack.enter_context(_watched_class(kind, mine, see, check))
        yield


def _hooks(site: StatisticsSite, see: See, check: Check) -> list[torch.utils.hooks.RemovableHandle]:
    before: list[Tensor] = []

    def enter(_: nn.Module, args: tuple[Any, ...]) -> None:
        check(site, args[0])
        before[:] = [site.mean.clone(), site.variance.clone()]

    def leave(_: nn.Module, args: tuple[Any, ...], __: Any) -> None:
        see(site, args[0], *before)

    return [site.owner.register_forward_pre_hook(enter), site.owner.register_forward_hook(leave)]


@contextmanager
def _watched_class(kind: type, sites: dict[int, StatisticsSite], see: See, check: Check) -> Iterator[None]:
    name = next((name for name in ("__call__", "forward") if name in dir(kind)), None)
    if name is None:
        raise ModelError(f"{kind.__name__} keeps running statistics but has neither __call__ nor forward to watch")
    original, own = getattr(kind, name), name in vars(kind)

    def watched(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        site = sites.get(id(self))
        if site is None:
            return original(self, x, *args, **kwargs)
        check(site, x)
        before = site.mean.clone(), site.variance.clone()
        result = original(self, x, *args, **kwargs)
        see(site, x, *before)
        return result

    setattr(kind, name, watched)
    try:
        yield
    finally:
        if own:
            setattr(kind, name, original)
        else:
            delattr(kind, name)
