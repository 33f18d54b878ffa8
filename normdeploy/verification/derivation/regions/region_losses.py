"""Digits that a region of the file loses: by constants that are stored beside a shift, or by what it reads.

An operator with weights is held against what its source adds up (:mod:`..related.lost_digits`). Of a region it is
measured: how far results move where constants are as they are stored, and where what is read is off by what it lost.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.verification.derivation.gauges import unit_roundoff
from normdeploy.verification.derivation.regions.differences import of_rows
from normdeploy.verification.derivation.regions.two_regions import Point, Regions
from normdeploy.verification.derivation.related.lost_digits import TOO_LARGE

_LOSES = 1024.0
"""Units of rounding by which results may move where constants are rounded: more is what a large number has lost."""


def lost_at(regions: Regions, point: Point) -> Floats | str:
    """Return the size of the target's shift where results at a point lose digits, of its shape; 0 elsewhere.

    Returns:
        It, or in a clause why nothing behind makes up for what is lost.
    """
    shift = torch.from_numpy(np.abs(regions.target.shift))
    found = torch.zeros_like(shift)
    unit = unit_roundoff(regions.relation.file.type_of(regions.value)) or unit_roundoff(ir.DataType.FLOAT)
    moved: list[tuple[Tensor, Tensor]] = []
    if regions.constants.derivation.constants:
        moved.append((point.have, regions.have(point.drawn, point.k, stored=True)))
    less = [w for w, claim in regions.claims.items() if claim.tells_less]
    if less:
        right = regions.want(point.drawn, point.k, lost=(0.0, -1))
        axes = range(-max(regions.relation.rank(w) or 0 for w in less), 0)
        moved += [(right, regions.want(point.drawn, point.k, lost=(unit, axis))) for axis in axes]
    for want, have in moved if point.want.numel() else ():
        off, size = of_rows((want - have).abs(), want.abs(), [axis for axis, n in enumerate(shift.shape) if n != 1])
        lost = off > _LOSES * unit * size
        if not bool(lost.any()) or regions.is_noise(point):
            continue
        if bool((lost & (shift == 0)).any()):
            return TOO_LARGE
        of = torch.where(lost, torch.maximum(shift, off / unit), 0.0)
        one = [axis for axis, n in enumerate(shift.shape) if n == 1]
        found = torch.maximum(found, of.amax(one, keepdim=True) if one else of)
    return found.numpy()
