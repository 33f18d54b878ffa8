"""Operators that pick or join elements wherever what is fed says: one scale and shift of all of them pass.

Where elements land is followed on identifiers (:mod:`.element_moves`), which takes places that follow from sizes. What
is the same of every element needs no following: f(s x + t) = s f(x) + t for any f that returns elements of x.
"""

from __future__ import annotations

import numpy as np

from normdeploy.array_types import Floats
from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.gauges import uniform
from normdeploy.verification.derivation.laws.pointwise import Carried, Reading, one_gauge
from normdeploy.verification.derivation.laws.same_operator import equal
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def picked(at: Reading) -> Carried:
    """One scale and one shift of all that the first operand holds; the others, which say where from, are equal.

    They look along some axes: on these alone, and where GatherElements leaves the last positions of an axis out, they
    have to be the same.
    """
    scale, shift = _of_one(at, at.first.scale), _of_one(at, at.first.shift)
    if scale is None or shift is None:
        return f"{kind(at.node)} picks from what is scaled or shifted differently"
    for w, v in zip(inputs_of(at.origin)[1:], inputs_of(at.node)[1:], strict=True):
        same = equal(at.relation, w, v)
        if not isinstance(same, bool):
            return same
    return scale, shift


def _of_one(at: Reading, array: Floats) -> Floats | None:
    """Return what an array is behind an operator that picks, wherever it does; None where that decides."""
    one = uniform(array)
    if one is not None:
        return np.array(one)
    rank, result = (at.relation.rank(value) for value in (at.origin.inputs[1], at.origin.outputs[0]) if value)
    if rank is None or result is None:
        return None
    if kind(at.node) == "GatherElements":
        chosen = axis_of(at.node.attributes.get_int("axis", 0), array.ndim)
        sizes = at.relation.source.shapes(at.origin.outputs[0])
        whole = all(size in (1, shape[axis]) for shape in sizes for axis, size in enumerate(array.shape))
        return array if whole and array.shape[chosen] == 1 else None
    if kind(at.node) == "Gather":
        before, behind = axis_of(at.node.attributes.get_int("axis", 0), array.ndim), rank
    else:
        before = at.node.attributes.get_int("batch_dims", 0)
        behind = rank - 1 - before
    kept = result - before - behind  # of the array's last axes
    if any(size != 1 for size in array.shape[before : array.ndim - kept]):
        return None
    return array.reshape(*array.shape[:before], *(1,) * behind, *array.shape[array.ndim - kept :])


def joined(at: Reading) -> Carried:
    """Parts of one gauge, which does not vary along the axis that they are joined on."""
    gauge, axis = one_gauge(at.claims), at.node.attributes.get_int("axis", 0)
    if gauge is None:
        return f"{kind(at.node)} joins what is not known, or scaled or shifted differently"
    if any(array.shape[axis] != 1 for claim in at.claims if claim for array in (claim.scale, claim.shift)):
        return f"{kind(at.node)} joins what is scaled or shifted differently along its axis"
    return gauge
