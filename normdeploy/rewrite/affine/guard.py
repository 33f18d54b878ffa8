"""Additions that guard against a zero: log(1 - p + 1e-10), 1 / (x - 1 + 1e-12).

Where p is 1, float32 computes 1 - p = 0 exactly, and the small number is the result. One map of both would add
1 + 1e-10, which float32 stores as 1: the guard would be gone, though no number is off by more than a rounding. So where
one number is added everywhere, and the sum with the shift of the map in front could not be stored with at least
:data:`DIGITS` of the smaller's bits, the addition is no map, and takes no shift of others.

Behind a layer with weights nothing is exactly 0 beside its bias, and there it is a shift like any other.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.constant import FORMATS

DIGITS = 6
"""Bits of the smaller number that the sum has to hold: it is then right within 1 %."""


def guarded_beside(x: ir.Value, mapping: AffineMap) -> float | None:
    """Return the number beside which what an addition adds would be lost; None where it would not.

    Args:
        x: what it adds to. mapping: the addition as a map.
    """
    if mapping.shift.size != 1 or not np.isin(mapping.scale, (1.0, -1.0)).all():
        return None
    producer = x.producer()
    while producer is not None and not is_affine(producer) and _passes_zeros(producer):
        source = producer.inputs[0]
        producer = None if source is None else source.producer()
    if producer is None or not is_affine(producer):
        return None
    before, added = float(np.abs(affine_map(producer).shift).max()), float(abs(mapping.shift.item()))
    roundoff = FORMATS[x.dtype or ir.DataType.FLOAT][0]
    return before if 0 < added < 2**DIGITS * roundoff * before else None


def _passes_zeros(node: ir.Node) -> bool:
    """Whether an operator that takes on shifts returns zeros for zeros: a move, an average, the largest of some."""
    return has(node, Trait.MONOTONE) and not has(node, Trait.POINTWISE)
