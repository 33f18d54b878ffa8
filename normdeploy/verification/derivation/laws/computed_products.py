"""Products of two computed values, MatMul and Einsum: scales multiply, and an average passes a shift.

sum_k s_ik a'_ik u_kj b'_kj = (s u)_ij sum_k a'_ik b'_kj where s_ik u_kj is the same for every k; and where each row of
a sums to one, as Softmax writes them, sum_k a_ik (b'_kj + t_j) = sum_k a_ik b'_kj + t_j. So with columns of b, and so
where a Mul and a ReduceSum make the product (:func:`confirm_average`). By a constant, a shift becomes sum_k a_ik t_kj.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import compress
from normdeploy.graph.einsum_letters import averaged_by, letters_of, placed
from normdeploy.graph.summed_axis import summed_axis
from normdeploy.verification.derivation.gauges import Claim, alike, ranked
from normdeploy.verification.derivation.laws.pointwise import Carried, Reading
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.operands import kind
from normdeploy.verification.derivation.side.reduced_axes import reduced
from normdeploy.verification.derivation.side.value_facts import ranks_in

PRODUCTS = ("MatMul", "Einsum")

_MOST = 1 << 24
"""Scales of a product that are looked at."""


def product(at: Reading) -> Carried:
    """Tell what a product makes of the gauges of what it multiplies."""
    claims = [claim for claim in at.claims if claim is not None]
    if len(claims) != len(at.claims) or len(claims) != len(at.node.inputs):
        return f"{kind(at.node)}: what it reads is not known"
    letters = letters_of(at.node, [claim.scale.ndim for claim in claims])
    if letters is None:
        return f"{kind(at.node)} with axes that are not followed"
    terms, written = letters
    if not _fit(claims, terms):
        return f"{kind(at.node)} multiplies what begins again by what varies otherwise"
    shift = _shift(at, claims, terms, written)
    if isinstance(shift, str):
        return shift
    order = [*written, *(letter for letter in dict.fromkeys("".join(terms)) if letter not in written)]
    scales = [placed(claim.scale, term, order) for claim, term in zip(claims, terms, strict=True)]
    if math.prod(np.broadcast_shapes(*(scale.shape for scale in scales))) > _MOST:
        return f"{kind(at.node)}: too many scales"
    whole = np.asarray(math.prod(scales))
    first = whole
    for axis in range(len(written), len(order)):
        first = first.take([0], axis)
    if not alike(whole, first):
        return f"{kind(at.node)} sums over what is scaled differently"
    return compress(first.reshape(first.shape[: len(written)])), shift


def _fit(claims: Sequence[Claim], terms: tuple[str, ...]) -> bool:
    """Tell whether what begins again along an axis meets nothing there that varies in another way."""
    for claim, term in zip(claims, terms, strict=True):
        for other, letters in zip(claims, terms, strict=True):
            if claim.again is None or term[claim.again] not in letters:
                continue
            at = letters.index(term[claim.again])
            most = max(claim.scale.shape[claim.again], claim.shift.shape[claim.again])
            if not {other.scale.shape[at], other.shift.shape[at]} <= {1, most if other.again == at else 1}:
                return False
    return len({term[claim.again] for claim, term in zip(claims, terms, strict=True) if claim.again is not None}) < 2


def axis_again(node: ir.Node, claims: Sequence[Claim | None]) -> int | None:
    """Return the axis along which what a product makes of what begins again does so, too."""
    letters = letters_of(node, [claim.scale.ndim for claim in claims if claim is not None])
    for claim, term in zip(claims, letters[0] if letters else (), strict=False):
        if claim is not None and claim.again is not None and letters and term[claim.again] in letters[1]:
            return letters[1].index(term[claim.again])
    return None


def _shift(at: Reading, claims: Sequence[Claim], terms: tuple[str, ...], written: str) -> Floats | str:
    """Return the shift of the result, or why there is none."""
    moved = [index for index, claim in enumerate(claims) if claim.shift.any()]
    if not moved:
        return np.zeros(())
    data, weights = moved[0], 1 - moved[0]
    if len(moved) > 1 or len(claims) != 2:
        return f"{kind(at.node)} multiplies what is shifted"
    weighed = _weighed(at, claims, terms, written, data)
    if weighed is not None:
        return weighed
    file = at.relation.file
    axis = summed_axis(at.node.inputs[weights], ranks_in(file), file.opset)
    letter = None if axis is None else averaged_by(terms, written, weights, axis)
    if letter is None or (claims[weights].scale != 1).any():
        return f"{kind(at.node)} multiplies what is shifted"
    over = terms[data].index(letter)
    one = claims[data].shift.take([0], over)
    if (claims[data].shift != one).any():
        return f"{kind(at.node)} averages what is shifted differently"
    return placed(one, terms[data], [*written, letter])[..., 0]


def _weighed(at: Reading, claims: Sequence[Claim], terms: tuple[str, ...], written: str, data: int) -> Floats | None:
    """Return what the source's constant makes of the shift of what it is multiplied by; None where it is none."""
    constant, shift = at.relation.source.fixed(at.origin.inputs[1 - data]), claims[data].shift
    summed = [letter for letter in dict.fromkeys("".join(terms)) if letter not in written]
    if constant is None or constant.dtype.kind != "f" or not set(summed) <= set(terms[1 - data]):
        return None
    if kind(at.node) != "MatMul" and any(constant.shape[terms[1 - data].index(letter)] == 1 for letter in summed):
        return None  # an Einsum may spread it over more elements
    order = [*written, *summed]
    t, v = placed(shift, terms[data], order), placed(constant.astype(np.float64), terms[1 - data], order)
    if math.prod(np.broadcast_shapes(t.shape, v.shape)) > _MOST:
        return None
    return compress(np.asarray((t * v).sum(axis=tuple(range(len(written), len(order))))))


def confirm_average(relation: Relation, total: ir.Node, origin: ir.Node) -> Finding:
    """Confirm a ReduceSum behind a Mul that average by weights of sum one, what is averaged being scaled and shifted.

    Args:
        total: the ReduceSum of the file. origin: that of the source.
    """
    made = [None if node.inputs[0] is None else node.inputs[0].producer() for node in (origin, total)]
    ours, theirs = made
    if ours is None or theirs is None or kind(ours) != "Mul" or kind(theirs) != "Mul":
        return ""
    file, shapes = relation.file, relation.file.shapes(theirs.outputs[0])
    axes = reduced(file, total, len(shapes[0])) if shapes else None
    if axes is None or len(axes) != 1 or axes != reduced(relation.source, origin, len(shapes[0])):
        return f"{kind(total)}: its axes are not known, or others"
    if difference(relation.source, origin, file, total):
        return f"{kind(total)}: {difference(relation.source, origin, file, total)}"
    axis = axes[0]
    for weights, data in ((0, 1), (1, 0)):
        value = theirs.inputs[weights]
        if value is None or summed_axis(value, ranks_in(file), file.opset) != axis - len(shapes[0]):
            continue
        if any(one[axis - len(whole)] != whole[axis] for one, whole in zip(file.shapes(value), shapes, strict=True)):
            continue  # repeated along the axis, they sum to more
        if not (file.one_size or any(whole[axis] > 1 for whole in shapes)):
            continue  # and at other sizes they may be
        for w, x in (ours.inputs, ours.inputs[::-1]):
            by, claim = relation.by(w, value), relation.by(x, theirs.inputs[data])
            if by is None or claim is None or not by.is_identity:
                continue
            gauge = [ranked(np.asarray(part), len(shapes[0])) for part in (claim.scale, claim.shift, claim.lost)]
            if any(part is None or part.shape[axis] != 1 for part in gauge):
                return f"{kind(total)} averages what is scaled or shifted differently"
            keeps = total.attributes.get_int("keepdims", 1) != 0
            scale, shift, lost = (part if keeps else part.squeeze(axis) for part in gauge if part is not None)
            assumed = by.assumed or claim.assumed
            known = Claim(total.outputs[0], scale, shift, assumed, guard=claim.guard, lost=lost)
            return Proof("an average passes the gauge", ((origin.outputs[0], known),), (total, theirs))
    return f"{kind(total)} sums what is not known, or by weights that do not sum to one"
