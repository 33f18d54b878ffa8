"""Products of two computed values, MatMul and Einsum: scales multiply, and an average passes a shift.

sum_k s_ik a'_ik u_kj b'_kj = (s u)_ij sum_k a'_ik b'_kj where s_ik u_kj is the same for every k; and where each row of
a sums to one, as Softmax writes them, sum_k a_ik (b'_kj + t_j) = sum_k a_ik b'_kj + t_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from normdeploy.graph import compress
from normdeploy.graph.einsum_letters import averaged_by, letters_of, placed
from normdeploy.graph.traits import sums_to_one
from normdeploy.verification.derivation.gauges import NOISE, Claim, Floats
from normdeploy.verification.derivation.operands import kind
from normdeploy.verification.derivation.pointwise import Carried, Reading

_MOST = 1 << 24
"""Scales of a product that are looked at."""

_SUMS_ALONG_AXIS = 13
"""From this operator set on, Softmax looks at one axis."""


def product(at: Reading) -> Carried:
    """Tell what a product makes of the gauges of what it multiplies."""
    claims = [claim for claim in at.claims if claim is not None]
    if len(claims) != len(at.claims) or len(claims) != len(at.node.inputs):
        return f"{kind(at.node)}: what it reads is not known"
    letters = letters_of(at.node) if kind(at.node) == "Einsum" else _of_matrices(claims)
    if letters is None or any(len(term) != claim.scale.ndim for term, claim in zip(letters[0], claims, strict=True)):
        return f"{kind(at.node)} with axes that are not followed"
    terms, written = letters
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
    if not bool((np.abs(whole - first) <= 10 * NOISE * np.abs(first)).all()):
        return f"{kind(at.node)} sums over what is scaled differently"
    return compress(first.reshape(first.shape[: len(written)])), shift


def _of_matrices(claims: Sequence[Claim]) -> tuple[tuple[str, ...], str] | None:
    """Return a MatMul's letters: "..ik,..kj->..ij", the leading axes counted from the end."""
    ranks = [claim.scale.ndim for claim in claims]
    if len(ranks) != 2 or min(ranks) < 2:
        return None
    stack = ascii_letters[3 : 3 + max(ranks) - 2]
    left, right = (stack[len(stack) - rank + 2 :] for rank in ranks)
    return (f"{left}ab", f"{right}bc"), f"{stack}ac"


def _shift(at: Reading, claims: Sequence[Claim], terms: tuple[str, ...], written: str) -> Floats | str:
    """Return the shift of the result, or why there is none."""
    moved = [index for index, claim in enumerate(claims) if claim.shift.any()]
    if not moved:
        return np.zeros(())
    data, weights = moved[0], 1 - moved[0]
    if len(moved) > 1 or len(claims) != 2:
        return f"{kind(at.node)} multiplies what is shifted"
    rows = at.node.inputs[weights]
    softmax = None if rows is None else rows.producer()
    letter = averaged_by(terms, written, weights)
    along_axis = softmax is not None and at.relation.file.opset(softmax) >= _SUMS_ALONG_AXIS
    sums = along_axis and sums_to_one(rows, claims[weights].scale.ndim)
    if letter is None or not sums or (claims[weights].scale != 1).any():
        return f"{kind(at.node)} multiplies what is shifted"
    over = terms[data].index(letter)
    one = claims[data].shift.take([0], over)
    if (claims[data].shift != one).any():
        return f"{kind(at.node)} averages what is shifted differently"
    return placed(one, terms[data], [*written, letter])[..., 0]
