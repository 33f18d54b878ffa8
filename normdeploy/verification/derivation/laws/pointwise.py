"""Operators that carry a gauge from what they read to what they write, each by a law of its own.

f(s x') = s f(x') for s > 0 (Relu and kin); sums of one scale; products of computed values; averages and maxima.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.graph.exact import compress
from normdeploy.graph.exponents import exponents_of
from normdeploy.verification.derivation.gauges import Claim, alike, noise_of, ranked, uniform
from normdeploy.verification.derivation.laws.same_operator import equal, spreads_constants
from normdeploy.verification.derivation.related.relation import Relation
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare
from normdeploy.verification.derivation.side.affine_laws import spread
from normdeploy.verification.derivation.side.beyond import alike_beyond
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.nought_values import is_nought
from normdeploy.verification.derivation.side.operands import inputs_of, kind, without_leading
from normdeploy.verification.derivation.side.operator_sets import operands_of
from normdeploy.verification.derivation.side.zero_guards import lost_bound

Carried = tuple[Floats, Floats] | Wrong | str
"""s and t of a result, or why there are none."""


@dataclass(frozen=True)
class Reading:
    """An operator in both graphs, and what is known of what it reads.

    Args:
        relation: what is known. node: of the file. origin: of the source.
        claims: of what is read, in order; None for constants.
        asked: the scale that the result is said to have, for what may have any.
    """

    relation: Relation
    node: ir.Node
    origin: ir.Node
    claims: list[Claim | None]
    asked: Array | None = None

    @property
    def first(self) -> Claim:
        """Of the first operand."""
        claim = self.claims[0]
        if claim is None:
            raise ValueError("its first operand follows from sizes")
        return claim


Carry = Callable[[Reading], Carried]


def others_equal(at: Reading) -> str:
    """Return which operand but the first differs, in a clause; "" if none does."""
    ours, theirs = operands_of(at.relation.source, at.origin, at.relation.file, at.node)
    for w, v in zip(ours[1:], theirs[1:], strict=True):
        want = None if w is None else at.relation.source.numbers(w)
        have = None if v is None else at.relation.file.numbers(v)
        if (w is None) != (v is None) or (w is not None and (want is None or have is None)):
            return f"{kind(at.node)}: an operand is not known"
        if want is not None and have is not None and spreads_constants(at.node):
            want, have = (tuple(a.reshape(without_leading(a.shape)) for a in arrays) for arrays in (want, have))
        if want is not None and have is not None and not all(map(np.array_equal, want, have)):
            return f"{kind(at.node)}: operand {v.name if v else ''!r} differs"
        if not alike_beyond(at.relation.source, w, at.relation.file, v):
            return f"{kind(at.node)}: operand {v.name if v else ''!r} may differ at other sizes"
    return ""


def homogeneous(at: Reading) -> Carried:
    """f(s x) = s f(x) for s > 0."""
    claim = at.first
    text = others_equal(at)
    if text:
        return text
    if (claim.scale <= 0).any() or claim.shift.any():
        return f"{kind(at.node)} is not linear where what it reads is shifted, or scaled by a negative number"
    return claim.scale, claim.shift


def power(at: Reading) -> Carried:
    """(s x)^p = s^p x^p for s > 0, and for any s where p is whole."""
    claim, text = at.first, others_equal(at)
    exponents = exponents_of(at.origin, at.relation.source.constant)
    if text or exponents is None or exponents.size != 1:
        return text or f"{kind(at.node)}: its exponent is not one number"
    if claim.shift.any() or (claim.scale <= 0 if exponents[0] % 1 else claim.scale == 0).any():
        return f"{kind(at.node)} of what is shifted, or scaled by a number that has no such power"
    with np.errstate(over="ignore", under="ignore"):
        scale = claim.scale ** exponents[0]
    found = bool((np.isfinite(scale) & (scale != 0)).all())
    return (scale, np.zeros_like(claim.shift)) if found else f"{kind(at.node)}: its scale leaves the range of numbers"


def sign(at: Reading) -> Carried:
    """On which side of 0 something is, which s > 0 leaves."""
    found = [(index, claim) for index, claim in enumerate(at.claims) if claim is not None]
    sides = ((at.relation.source, at.origin), (at.relation.file, at.node))
    zeros = (side.constant(node.inputs[1 - found[0][0]]) for side, node in sides) if len(at.claims) == 2 else ()
    if len(found) != 1 or any(numbers is None or numbers.any() for numbers in zeros):
        return f"{kind(at.node)} compares with what is not 0"
    if (found[0][1].scale <= 0).any() or found[0][1].shift.any():
        return f"{kind(at.node)} compares what is shifted, or scaled by a negative number"
    return np.ones(()), np.zeros(())


def masked(at: Reading) -> Carried:
    """Elements stay or become 0."""
    text = others_equal(at)
    if text or at.first.shift.any():
        return text or f"{kind(at.node)} writes zeros into what is shifted"
    return at.first.scale, at.first.shift


def total(at: Reading) -> Carried:
    """Sums of one scale; shifts add up. Zeros are of any scale."""
    if any(claim is None for claim in at.claims):
        return f"{kind(at.node)}: what it reads is not known"
    known = [claim for claim in at.claims if claim is not None]
    scale = known[0].scale
    if not all(alike(claim.scale, scale) for claim in known):
        counted = [claim for w, claim in zip(inputs_of(at.origin), known, strict=True) if not _zeros(at, w, claim)]
        scale = counted[0].scale if counted else scale
        if not all(alike(claim.scale, scale) for claim in counted):
            return f"{kind(at.node)} adds what is scaled differently"
    signs = [1.0, -1.0] if kind(at.node) == "Sub" else [1.0] * len(known)
    terms = [sign * claim.shift for sign, claim in zip(signs, known, strict=True)]
    sizes = [claim.summed for claim in known]
    shift, size = np.sum(np.broadcast_arrays(*terms), 0), np.sum(np.broadcast_arrays(*sizes), 0)
    shift = np.where(np.abs(shift) <= noise_of(size), 0.0, shift)
    return scale, np.asarray(shift)


def _zeros(at: Reading, w: ir.Value | None, claim: Claim) -> bool:
    """Tell whether both what is read in the source and what stands for it are zeros."""
    return not claim.shift.any() and is_nought(at.relation.source, w) and is_nought(at.relation.file, claim.value)


def product(at: Reading) -> Carried:
    """Products of what is not shifted: scales multiply. Of a product by the source's constant c the shift is c t."""
    if any(claim is None for claim in at.claims) or len(at.claims) != 2:
        return f"{kind(at.node)}: what it reads is not known"
    one, other = (claim for claim in at.claims if claim is not None)
    moved = [index for index, claim in enumerate((one, other)) if claim.shift.any()]
    constant = at.relation.source.constant(at.origin.inputs[1 - moved[0]]) if moved else None
    divides = kind(at.node) == "Div"
    if len(moved) > 1 or (moved and (constant is None or (divides and moved[0] == 1))):
        return f"{kind(at.node)} multiplies what is shifted"
    if divides and not (other.scale != 0).all():
        return "a division by a scale of 0"
    scale = one.scale / other.scale if divides else one.scale * other.scale
    shift = np.zeros_like(one.shift * other.shift)
    if constant is not None:
        by = constant.astype(np.float64)
        with np.errstate(divide="ignore"):
            shift = shift + (one, other)[moved[0]].shift * (1 / by if divides else by)
    return (scale, shift) if np.isfinite(shift).all() else f"{kind(at.node)}: its shift is not finite"


def choice(at: Reading) -> Carried:
    """max(s a + t, s b + t) = s max(a, b) + t for s > 0."""
    first = at.claims[0]
    if first is None or any(claim is None for claim in at.claims):
        return _against_constant(at)
    found = one_gauge(at.claims)
    if found is None or (first.scale <= 0).any():
        return f"{kind(at.node)} compares what is scaled differently, or by a negative number"
    return first.scale, first.shift


def _against_constant(at: Reading) -> Carried:
    """max(s x' + t, c) = s max(x', (c - t) / s) + t for s > 0."""
    open_at = [index for index, claim in enumerate(at.claims) if claim is None]
    if len(at.claims) != 2 or len(open_at) != 1:
        return f"{kind(at.node)}: what it reads is not known"
    claim = at.claims[1 - open_at[0]]
    want, have = (
        spread(at.relation.source, at.origin.inputs[open_at[0]]),
        at.relation.file.constant(at.node.inputs[open_at[0]]),
    )
    if claim is None or want is None or have is None or (claim.scale <= 0).any():
        return f"{kind(at.node)}: what it reads is not known"
    expected = (want[0] - claim.shift) / claim.scale
    wrong = _constant_wrong(at.relation.file, at.node.inputs[open_at[0]], have, expected)
    return wrong or _lost(at, have, want[0], claim) or (claim.scale, claim.shift)


def _lost(at: Reading, have: Floats, want: Floats, claim: Claim) -> str:
    """Return in a clause that a bound or a number that is chosen no longer keeps a result from 0; "" if it does."""
    text = lost_bound(at.relation.source, at.origin.outputs[0], have, want, claim.scale, claim.shift)
    return f"{kind(at.node)}: {text}" if text else ""


def _constant_wrong(file: Side, value: ir.Value | None, have: Floats, expected: Floats) -> Wrong | None:
    expected = compress(np.asarray(expected))
    if expected.size == 1 and have.size == 1:
        expected = expected.reshape(have.shape)
    aligned = ranked(have, max(expected.ndim, have.ndim))
    wrong = compare(aligned if aligned is not None else have, file.stored_in(value), expected)
    return None if wrong is None else wrong.of(f"operand {value.name if value else ''!r}")


def clip(at: Reading) -> Carried:
    """clip(s x' + t, a, b) = s clip(x', (a - t) / s, (b - t) / s) + t for s > 0; bounds change places below 0.

    A bound of 0 is one for all that is scaled.
    """
    claim = at.first
    scale, shift = uniform(claim.scale), uniform(claim.shift)
    if any(name in at.node.attributes for name in ("min", "max")) and not claim.is_identity:
        return "Clip has its bounds as attributes"
    if scale is None or shift is None or scale <= 0:
        if (claim.scale > 0).all() and not claim.shift.any() and _cuts_at_nought(at):
            return claim.scale, claim.shift
        return "Clip has one bound for what is scaled differently, or by a negative number"
    ours, theirs = inputs_of(at.origin), inputs_of(at.node)
    for w, v in zip(ours[1:], theirs[1:], strict=True):
        want, have = at.relation.source.constant(w), at.relation.file.constant(v)
        if (w is None) != (v is None) or (w is not None and (want is None or have is None)):
            return "Clip: a bound is not known"
        if want is not None and have is not None:
            wrong = _constant_wrong(at.relation.file, v, have, (want - shift) / scale)
            lost = wrong or _lost(at, have, want, claim)
            if lost:
                return lost
    return claim.scale, claim.shift


def _cuts_at_nought(at: Reading) -> bool:
    """Tell whether both Clips have 0 for a lower bound and no upper one: relu(s x') = s relu(x') for s > 0."""
    sides = (at.relation.source, inputs_of(at.origin)), (at.relation.file, inputs_of(at.node))
    lows = [side.constant(read[1]) for side, read in sides if len(read) > 1 and all(high is None for high in read[2:])]
    return len(lows) == len(sides) and all(low is not None and not low.any() for low in lows)


def where(at: Reading) -> Carried:
    """Choose between what has one gauge; a constant c becomes (c - t) / s.

    Where places are known, a constant w in the place of v has at its own the shift w - s v.
    """
    condition = equal(at.relation, at.origin.inputs[0], at.node.inputs[0])
    if not isinstance(condition, bool):
        return condition
    found = one_gauge(at.claims[1:])
    if found is not None:
        return found
    open_at = [index for index in (1, 2) if at.claims[index] is None]
    claim = next((claim for claim in at.claims[1:] if claim is not None), None)
    if claim is None or len(open_at) != 1:
        return "Where: what it reads is scaled differently"
    stored = at.node.inputs[open_at[0]]
    want, have = spread(at.relation.source, at.origin.inputs[open_at[0]]), at.relation.file.constant(stored)
    if want is None or have is None:
        return "Where: what it reads is not known"
    wrong = _constant_wrong(at.relation.file, stored, have, (want[0] - claim.shift) / claim.scale)
    chosen = at.relation.file.constant(at.node.inputs[0])
    if wrong is None or chosen is None or not (np.isfinite(want[0]).all() and np.isfinite(have).all()):
        return wrong or _lost(at, have, want[0], claim) or (claim.scale, claim.shift)
    own = want[0] - claim.scale * have
    shift = np.where(chosen, *((own, claim.shift) if open_at[0] == 1 else (claim.shift, own)))
    return claim.scale.reshape((1,) * (shift.ndim - claim.scale.ndim) + claim.scale.shape), shift


def one_gauge(claims: list[Claim | None]) -> tuple[Floats, Floats] | None:
    """Return the gauge that all operands have, written as one number or once per channel; None where there is none."""
    known = [claim for claim in claims if claim is not None]
    if len(known) < len(claims):
        return None
    first = known[0]
    same = all(alike(c.scale, first.scale) and alike(c.shift, first.shift) for c in known)
    return (first.scale, first.shift) if same else None
