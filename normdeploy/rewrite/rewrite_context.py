"""What all rewriting passes share: the ledger, the options, and the check of each rewrite where it happens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError, RewriteError
from normdeploy.graph import FLOATS, evaluate_alike, evaluate_region
from normdeploy.rewrite.carried_values import Carried
from normdeploy.rewrite.ledger import Ledger

STATISTIC = "normdeploy.statistic"
"""Node metadata key of what a normalization computes on its statistics: no affine map of the user's."""

GUARD = "normdeploy.guard"
"""Metadata of an addition of a number that rounding would lose beside what is added in front of it."""

OWN_AFFINE = "normdeploy.own_affine"
"""Node metadata key of the scale and shift that a recognised normalization writes behind its operator: a part of it,
with a ledger row of its own only where it leaves."""

RMS_OPSET = 23
"""The operator set that has RMSNormalization."""

TOLERANCE = 1e-10
"""Largest relative difference (float64) between a region before and after its rewrite."""

_MOST = 2**27
"""Elements (1 GiB) that are drawn for one value of a check."""

_PROBE_SIZES = (2, 3, 5, 4, 6)  # what dynamic dimensions become in a check: small and mutually distinct


@dataclass
class RewriteContext:
    """Shared by all passes of one rewriting.

    Args:
        ledger: rows of what was found and done.
        approximate: allow rewrites that are not exact (each says so in the ledger).
        highest_opset: the operator set that the result may not exceed; None for as high as its operators need.
        check: evaluate each region before and after its rewrite in float64.
        integer: write quantized layers on integers.
        rng: draws the check's inputs; seeded, so that a failure repeats.
        carried: what values are computed as, for the derivation.
    """

    ledger: Ledger = field(default_factory=Ledger)
    approximate: bool = False
    check: bool = True
    integer: bool = False
    highest_opset: int | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    carried: Carried = field(default_factory=Carried)

    def normal(self, dims: Sequence[int]) -> Tensor:
        """Draw float64 N(0, 1).

        Raises:
            GraphError: a file may declare any size, and these are more numbers than are drawn to check one operator.
        """
        if math.prod(dims) > _MOST:
            raise GraphError(f"a check would draw an array of shape {list(dims)}; expected at most {_MOST} elements")
        return torch.from_numpy(self.rng.standard_normal(dims))

    def random_feed(self, value: ir.Value, sizes: dict[str, int] | None = None) -> Tensor:
        """Draw a random value for a region input: float64 N(0, 1); small integers; random booleans.

        Args:
            value: its shape must be known in rank; dynamic dimensions get small sizes.
            sizes: sizes already given to dynamic dimensions, by name; completed in place.

        Raises:
            GraphError: the rank is unknown, or it is too large.
        """
        if value.shape is None:
            raise GraphError(f"value {value.name!r} has no known rank; run shape inference before rewriting")
        sizes = {} if sizes is None else sizes
        dims: list[int] = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, int):
                dims.append(dim)
                continue
            name = dim.value or f"{value.name}.{axis}"
            dims.append(sizes.setdefault(name, _PROBE_SIZES[len(sizes) % len(_PROBE_SIZES)]))
        return self.drawn(value.dtype, dims)

    def drawn(self, dtype: ir.DataType | None, dims: Sequence[int]) -> Tensor:
        """Draw float64 N(0, 1), 0 and 1 as integers, or random booleans."""
        if dtype is None or dtype in FLOATS:
            return self.normal(dims)
        return torch.from_numpy(self.rng.integers(0, 2, dims).astype(dtype.numpy()))

    def check_region(
        self,
        rule: str,
        site: str,
        before: Sequence[ir.Node],
        after: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        outputs: Sequence[tuple[ir.Value, ir.Value]],
        *,
        tolerance: float = TOLERANCE,
        feeds: Mapping[ir.Value, Tensor] | None = None,
    ) -> None:
        """Evaluate a region before and after its rewrite in float64 on random inputs.

        Args:
            rule: the rewrite's name, for the error.
            site: module path or node name, for the error.
            before: the region's nodes as they were, in topological order.
            after: the nodes that replace them, in topological order.
            inputs: the values that both read from outside, constants left out.
            outputs: pairs of values (before, after) that must agree.
            tolerance: largest allowed max|before - after| / max|before|.
            feeds: inputs to use in place of random ones.

        Raises:
            RewriteError: they differ; the rewrite must not ship.
        """
        if not self.check:
            return
        sizes: dict[str, int] = {}
        drawn = {
            value: feeds[value] if feeds is not None and value in feeds else self.random_feed(value, sizes)
            for value in inputs
        }
        with torch.no_grad():
            drawn |= evaluate_alike(before, after, drawn)
            old = evaluate_region(before, drawn, [pair[0] for pair in outputs])
            new = evaluate_region(after, drawn, [pair[1] for pair in outputs])
        for (value, _), expected, got in zip(outputs, old, new, strict=True):
            if expected.shape != got.shape:
                raise RewriteError(
                    rule, site, f"{value.name} had shape {tuple(expected.shape)}, now {tuple(got.shape)}"
                )
            distance = relative_distance(expected, got)
            if not distance <= tolerance:
                raise RewriteError(
                    rule, site, f"{value.name} differs by {distance:.3g} relative; expected at most {tolerance:g}"
                )


def relative_distance(expected: Tensor, got: Tensor) -> float:
    """Return max|expected - got| / max|expected|; equal NaN and infinities count as agreement."""
    if expected.numel() == 0:
        return 0.0
    expected, got = expected.to(torch.float64), got.to(torch.float64)
    same = (expected == got) | (torch.isnan(expected) & torch.isnan(got))
    if bool(same.all()):
        return 0.0
    finite = torch.isfinite(expected)
    if not bool((torch.isfinite(got) | same).all()) or not bool((finite | same).all()):
        return float("inf")
    scale = float(expected[finite].abs().max()) if bool(finite.any()) else 0.0
    difference = float((expected - got)[~same].abs().max())
    return difference / scale if scale > 0 else difference


class RewritePass(ir.passes.InPlacePass):
    """A pass that writes in the ledger, or has what it changes checked.

    Args:
        context: shared by the passes of one rewriting.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__()
        self.context = context
