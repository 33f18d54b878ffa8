"""A module without a graph: an ensemble of its float32 runs says what rounding explains.

In each run every float that enters a torch call, weights and activations alike, is multiplied by 1 + 2 u r with r
uniform in [-1, 1]: by a rounding to either neighbour. Sums so err relative to their terms. The pointwise deviation of
the runs is S of the criterion; where the module does not run in float64 either, their mean stands for the truth.
Without a graph there are no mutants, so such a verdict is weak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from normdeploy.array_types import Array
from normdeploy.nn.promoted import LOW_FLOATS
from normdeploy.verification.sides.double import is_in_place
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF, Feeds
from normdeploy.verification.sides.two_sides import EagerReference, Refused

RUNS = 12
_FEWEST = 2
"""Runs of which a deviation can be taken."""


class NoisyMode(TorchFunctionMode):
    """Multiply every low-precision float that enters a torch call by 1 + 2 u r.

    Args:
        seed: of r.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` on moved arguments; what it writes to or reads an attribute of is left alone."""
        name = getattr(func, "__name__", "")
        if is_in_place(name) or name in ("__get__", "__set__"):
            return func(*args, **dict(kwargs or {}))
        return func(*tree_map(self._moved, args), **tree_map(self._moved, dict(kwargs or {})))

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype is torch.complex64:
            with torch._C.DisableTorchFunction():
                parts = torch.view_as_real(value.resolve_conj())
            return torch.view_as_complex(self._moved(parts))
        if not isinstance(value, Tensor) or value.dtype not in LOW_FLOATS or value.device.type != "cpu":
            return value
        reach = 2 * UNIT_ROUNDOFF[str(value.dtype).removeprefix("torch.")]
        with torch._C.DisableTorchFunction():
            r = torch.rand(value.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
            return (value.double() * (1 + reach * r)).to(value.dtype)


class EnsembleReference:
    """A module in its own precision, its truth estimated from runs with rounding noise.

    Args:
        module: the module; it has no graph and does not run in float64.
    """

    has_truth = False

    def __init__(self, module: EagerReference) -> None:
        self.module = module
        self.name = module.name
        self.graph: ir.Model | None = None
        self.output_names = module.output_names

    def ready(self) -> AbstractContextManager[Any]:
        """Prepare the module."""
        return self.module.ready()

    def native(self, feeds: Feeds) -> list[Any]:
        """Return the module's outputs in its own precision."""
        return self.module.native(feeds)

    def truth(self, feeds: Feeds) -> list[Any]:
        """Return the mean of the runs; what is no float as the module returns it.

        Raises:
            Refused: the module raised.
        """
        return [mean for mean, _ in ensemble(self.module, feeds)]


def ensemble(module: EagerReference, feeds: Feeds) -> list[tuple[Array, Array]]:
    """Return mean and pointwise deviation of each output over runs with rounding noise.

    What is no float, or changes its shape with the noise, is as the module returns it, with a deviation of zero. A run
    that noise makes invalid (a probability above 1) is left out; where each is, nothing deviates.

    Raises:
        Refused: the module raised without noise.
    """
    clean = [np.asarray(a) for a in module.native(feeds)]
    runs = []
    for seed in range(RUNS):
        with suppress(Refused):
            runs.append(module.under(feeds, NoisyMode(seed)))
    found = []
    for i, own in enumerate(clean):
        drawn = [np.asarray(run[i]) for run in runs]
        if not is_float(own) or len(runs) < _FEWEST or any(a.shape != own.shape for a in drawn):
            found.append((own, np.zeros(own.shape)))
            continue
        stacked = np.stack([a.astype(np.float64) for a in drawn])
        finite = np.isfinite(stacked).all(axis=0) & np.isfinite(own)
        stacked = np.where(finite, stacked, 0.0)
        mean = np.where(finite, stacked.mean(axis=0), own.astype(np.float64))
        found.append((mean, stacked.std(axis=0, ddof=1)))
    return found
