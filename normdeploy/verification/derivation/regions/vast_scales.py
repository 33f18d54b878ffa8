"""Rows that a scale of 0 leaves nothing of, where two regions are compared.

There w = s v + t with a vast s: v is -t / s whatever w is, which only a map by 0 makes the source's again. So the
source is given other numbers than the file holds, and of the file's result its own value is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.verification.derivation.gauges import VAST, Claim, ScaledValue, stands_for_nothing


def read_by_source(claim: Claim, held: Tensor, given: Tensor, moved: Collection[ir.Value], seed: int) -> Tensor:
    """Return what the source reads: anything, where the file holds nothing of it.

    Args:
        claim: of the value. held: what the file holds. given: s v + t of that.
        moved: values of which only a Transpose is claimed. seed: another one for each value of the source.
    """
    free = _free(claim, moved)
    if free is None:
        return given
    generator = torch.Generator().manual_seed(seed)
    return torch.where(free, torch.randn(held.shape, generator=generator, dtype=torch.float64), given)


def held_by_file(claims: Iterable[Claim], value: ir.Value, drawn: Tensor, moved: Collection[ir.Value]) -> Tensor:
    """Return what was drawn of a value, with what the file holds where it holds nothing of the source's."""
    for claim in claims:
        if claim.value is value and (free := _free(claim, moved)) is not None:
            drawn = torch.where(free, _left_of(claim), drawn)
    return drawn


def wanted(target: ScaledValue, found: Tensor) -> Tensor:
    """Return the source's results, with what the file has to hold where it holds nothing of them."""
    nothing = torch.from_numpy(stands_for_nothing(target.scale)) & found.isfinite()
    return torch.where(nothing, _left_of(target), found) if nothing.any() else found


def brought(target: ScaledValue, found: Tensor) -> Tensor:
    """Return the file's results brought to the source's, and as they are where they hold nothing of these."""
    scale, shift = target.scale, target.shift
    nothing = stands_for_nothing(scale)
    if nothing.any():
        found = found.masked_fill(torch.from_numpy(nothing) & (found.abs() <= 1 / VAST), 0.0)
        scale, shift = np.where(nothing, 1.0, scale), np.where(nothing, 0.0, shift)
    return found * torch.from_numpy(np.asarray(scale)) + torch.from_numpy(np.asarray(shift))


def _free(claim: Claim, moved: Collection[ir.Value]) -> Tensor | None:
    """Return where the source's value is anything beside what the file holds; None where nowhere."""
    if claim.value in moved or claim.rows:
        return None
    nothing = stands_for_nothing(claim.scale)
    return torch.from_numpy(nothing) if nothing.any() else None


def _left_of(stands: ScaledValue) -> Tensor:
    return torch.from_numpy(np.asarray(-stands.shift / stands.scale))
