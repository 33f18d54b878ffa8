"""Constants of which random points show only a part: an entry of 1e-12 beside entries of 1 is within any tolerance.

Two regions that are equal at random points to 1e-9 of their size may differ in what is smaller than that. Where the
file's constants are the source's, or the rounding of unrounded ones, nothing is left to points. Others have to be of
one size throughout; and one operator in the place of one of its kind, that reads the same, has the same constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import FLOATS
from normdeploy.verification.derivation.regions.two_regions import Regions
from normdeploy.verification.derivation.related.stored_rounding import compare
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_APART = 1e9
"""How many times its smallest number a constant's largest may be: as many as points tell apart."""


def unseen_constants(regions: Regions) -> bool:
    """Tell whether the file holds constants in a region that points do not show, and that are not known otherwise."""
    file, source = regions.relation.file, regions.relation.source
    own = list(_held(source, regions.ours))
    left, known = list[Array](), list[Array]()
    for node, index, value, array in _held(file, regions.theirs):
        if regions.constants.of(node, index) is not None:
            continue
        same = [other for *_, other in own if _is(array, file.type_of(value), other)]
        known += same
        left += [] if same else [array]
    if not left:
        return False
    lost = [other for *_, other in own if not any(other is one for one in known)]
    alike = len(regions.theirs) == len(regions.ours) == 1 and kind(regions.theirs[0]) == kind(regions.ours[0])
    return (alike and _is_plain(regions) and bool(lost)) or any(map(_is_apart, (*left, *lost)))


def _held(side: Side, nodes: Sequence[ir.Node]) -> Iterator[tuple[ir.Node, int, ir.Value, Array]]:
    """Yield the constants of several floats that operators read, each with its reader and place."""
    for node in nodes:
        for index, value in enumerate(inputs_of(node)):
            array = None if value is None or side.type_of(value) not in FLOATS else side.constant(value)
            if value is not None and array is not None and array.size > 1:
                yield node, index, value, array


def _is(have: Array, dtype: ir.DataType | None, want: Array) -> bool:
    """Tell whether a constant is another, rounded and in whatever shape."""
    if have.size != want.size or tuple(n for n in have.shape if n > 1) != tuple(n for n in want.shape if n > 1):
        return False
    return compare(have, dtype, want.reshape(have.shape)) is None


def _is_plain(regions: Regions) -> bool:
    """Tell whether what is read and what is returned is the source's, neither scaled nor shifted."""
    return regions.target.is_identity and all(claim.is_identity for claim in regions.claims.values())


def _is_apart(array: Array) -> bool:
    """Tell whether some numbers of a constant are too small beside others."""
    sizes = np.abs(array[np.isfinite(array) & (array != 0)])
    return bool(sizes.size) and float(sizes.max()) > _APART * float(sizes.min())
