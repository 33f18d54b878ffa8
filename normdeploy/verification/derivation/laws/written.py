"""Updates written into places of a value: ScatterElements, ScatterND. Both have one scale, and one shift or none.

Along axes on which places are named nothing may vary; along the others value and updates correspond to each other::

    replace     scatter(s x + t, p, s u + t) = s scatter(x, p, u) + t; a maximum or minimum likewise, for s > 0
    add         scatter(s x + t, p, s u) = s scatter(x, p, u) + t
    multiply    scatter(s x, p, u) = s scatter(x, p, u)

A constant c among them becomes (c - t) / s: zeros are of any scale, infinities of any scale above 0 and of any shift.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.gauges import Claim, alike, ranked
from normdeploy.verification.derivation.laws.same_operator import equal
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare
from normdeploy.verification.derivation.side.affine_laws import Affine, spread
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.zero_guards import lost_bound


def confirm_written(relation: Relation, node: ir.Node, origin: ir.Node, behind: Affine, target: Target) -> Finding:
    """Confirm that a value with updates written into it has a scale and a shift.

    Args:
        node, origin: of one kind, of the file and the source. behind: the map of the source's. target: of the file's.
    """
    text = difference(relation.source, origin, relation.file, node)
    if text or (behind.scale == 0).any():
        return f"{kind(node)}: {text or 'what is written is scaled by 0'}"
    scale, shift = target.scale / behind.scale, (target.shift - behind.shift) / behind.scale
    found = _confirm(relation, node, origin, scale, shift)
    if not isinstance(found, bool):
        return found
    known = Claim(node.outputs[0], target.scale, target.shift, found)
    return Proof("updates of the value's gauge are written", ((target.value, known),), (node,))


def _confirm(relation: Relation, node: ir.Node, origin: ir.Node, scale: Floats, shift: Floats) -> bool | str | Wrong:
    """Return False if the result has the gauge, True if so by assumption, or why it has not."""
    how = node.attributes.get_string("reduction", "none")
    same = equal(relation, origin.inputs[1], node.inputs[1])
    if not isinstance(same, bool):
        return same
    ranks = [None if x is None else relation.rank(x) for x in inputs_of(origin)]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < 3:
        return f"{kind(node)} reads what has no known rank"
    if how in ("max", "min") and (scale <= 0).any():
        return f"{kind(node)} compares what is scaled by a negative number"
    if how == "mul" and shift.any():
        return f"{kind(node)} multiplies what is shifted"
    gauge = [ranked(array, known[0]) for array in np.broadcast_arrays(scale, shift)]
    laid_out = [None if array is None else _of_updates(node, array, known) for array in gauge]
    if gauge[0] is None or gauge[1] is None or laid_out[0] is None or laid_out[1] is None:
        return f"{kind(node)} writes along an axis on which its result is scaled or shifted differently"
    of_updates = {
        "add": (laid_out[0], np.zeros_like(laid_out[1])),
        "mul": (np.ones_like(laid_out[0]), np.zeros_like(laid_out[1])),
    }.get(how, (laid_out[0], laid_out[1]))
    assumed = same
    for index, (s, t) in ((0, (gauge[0], gauge[1])), (2, of_updates)):
        found = _has(relation, origin.inputs[index], node.inputs[index], s, t)
        if not isinstance(found, bool):
            return found if isinstance(found, Wrong) else f"{kind(node)}: {found}"
        assumed |= found
    return assumed


def _of_updates(node: ir.Node, array: Floats, ranks: list[int]) -> Floats | None:
    """Return an array along the updates' axes; None where it varies along one on which places are named."""
    if kind(node) == "ScatterElements":
        return array if array.shape[axis_of(node.attributes.get_int("axis", 0), array.ndim)] == 1 else None
    leading = ranks[1] - 1
    depth = ranks[0] - (ranks[2] - leading)
    return array.reshape((1,) * leading + array.shape[depth:]) if all(n == 1 for n in array.shape[:depth]) else None


def _has(
    relation: Relation, w: ir.Value | None, v: ir.Value | None, scale: Floats, shift: Floats
) -> bool | str | Wrong:
    """Tell whether w = scale v + shift: False if so, True if so by assumption, or why not."""
    if w is None or v is None:
        return "an operand is missing"
    claim = relation.by(w, v)
    try:
        if claim is not None and alike(claim.scale, scale) and alike(claim.shift, shift):
            return claim.assumed
        want, have = spread(relation.source, w), spread(relation.file, v)
        if want is None or have is None:
            return f"what it reads, {v.name!r}, is not known to be {w.name!r} of that scale and shift"
        expected = (want[0] - shift) / scale
    except ValueError:  # of sizes that do not fit
        return f"what it reads, {v.name!r}, is of another size than what is scaled"
    stored, expected = np.broadcast_arrays(have[0], expected)
    wrong = compare(stored, relation.file.type_of(v), expected)
    if wrong is None:
        return lost_bound(relation.source, w, stored, np.asarray(want[0]), scale, shift) or False
    return wrong.of(f"operand {v.name!r}")
