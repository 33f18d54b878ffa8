"""Recurrent operators: W' = W s and b' = b + W t for operands scaled and shifted feature by feature.

Two biases are stored, of what is read and of the state. A gate adds both, so that their sum is what counts; only the
last gate of a GRU that multiplies the second by its reset gate (linear_before_reset) tells them apart.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.verification.derivation.gauges import along, stands_for_nothing
from normdeploy.verification.derivation.laws.same_operator import equal, same_results
from normdeploy.verification.derivation.related.lost_digits import FORGOTTEN
from normdeploy.verification.derivation.related.relation import Finding, Relation
from normdeploy.verification.derivation.related.stored_rounding import compare, worst
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.computed_rounding import off_by_rounding
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_X, _W, _B = 0, 1, 3
_OTHERS = (2, 4, 5, 6, 7)
"""Places of the operands: recurrent weights, lengths, first states and peepholes have to be the same."""


def confirm_recurrent(relation: Relation, node: ir.Node, origin: ir.Node) -> Finding:
    """Confirm an LSTM, GRU or RNN whose weights take up the gauge of its features.

    Args:
        node: of the file. origin: of the source, of the same kind.
    """
    if kind(node) not in ("LSTM", "GRU", "RNN"):
        return ""
    text = difference(relation.source, origin, relation.file, node)
    if text:
        return f"{kind(node)}: {text}"
    ours, theirs = ([*inputs_of(n), *[None] * 8][:8] for n in (origin, node))
    claim = relation.by(ours[_X], theirs[_X])
    if claim is not None and (claim.tells_less or stands_for_nothing(claim.scale).any()):
        return f"{kind(node)}: {FORGOTTEN}"
    want, have = relation.source.fixed(ours[_W]), relation.file.fixed(theirs[_W])
    weights = theirs[_W]
    if claim is None or want is None or have is None or weights is None or want.ndim != 3:
        return f"what {kind(node)} reads is not known to be what the source's reads"
    found = [equal(relation, ours[place], theirs[place]) for place in _OTHERS]
    bad = next((item for item in found if not isinstance(item, bool)), None)
    if bad is not None:
        return bad
    scale, shift = (along(array, -1, want.shape[2]) for array in (claim.scale, claim.shift))
    if scale is None or shift is None:
        return f"{kind(node)} of what is scaled differently from place to place"
    stored = relation.file.stored_in(weights)
    slack = 0.0 if stored is not None else off_by_rounding(relation.file, weights, have)
    off = [compare(have, stored, want * scale, slack=slack)]
    if off[0] is not None and not off[0].rounding:
        return off[0].of(f"weights of {kind(node)}")
    ours_b, theirs_b = (_bias(side, v, want) for side, v in ((relation.source, ours[_B]), (relation.file, theirs[_B])))
    if ours_b is None or theirs_b is None:
        return f"{kind(node)}: its bias is computed"
    added, size = (np.pad(array @ t, ((0, 0), (0, want.shape[1]))) for array, t in _terms(want, shift))
    reset_behind = kind(node) == "GRU" and bool(node.attributes.get_int("linear_before_reset", 0))
    apart = want.shape[1] // 3 if reset_behind else 0
    have_b, want_b, slack_b, size_b = (
        _added(array, apart) for array in (theirs_b[0], ours_b[0] + added, theirs_b[1], np.abs(ours_b[0]) + size)
    )
    off.append(compare(have_b, None, want_b, slack=slack_b, size=size_b))
    wrong = worst(off)
    if wrong is not None:
        return wrong.of(f"{'weights' if wrong is off[0] else 'bias'} of {kind(node)}")
    return same_results(node, origin, assumed=claim.assumed or any(item is True for item in found))


def _terms(weight: Floats, shift: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    return (weight, shift), (np.abs(weight), np.abs(shift))


def _added(bias: Floats, apart: int) -> Floats:
    """Return the sums of the two biases that gates add, and the last ``apart`` of each as they are."""
    first, second = np.split(bias, 2, axis=1)
    shared = first.shape[1] - apart
    return np.concatenate([first[:, :shared] + second[:, :shared], first[:, shared:], second[:, shared:]], axis=1)


def _bias(side: Side, value: ir.Value | None, weight: Floats) -> tuple[Floats, Floats] | None:
    """Return the bias, zeros where there is none, and how far rounding may have moved it."""
    if value is None:
        nought = np.zeros((weight.shape[0], 2 * weight.shape[1]))
        return nought, nought
    array = side.fixed(value)
    return None if array is None else (array, off_by_rounding(side, value, array))
