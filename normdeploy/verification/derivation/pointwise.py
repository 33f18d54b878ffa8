"""Operators that carry a gauge from what they read to what they write, each by a law of its own.

f(s x') = s f(x') for s > 0 (Relu and kin); sums of one scale; products of computed values; averages and maxima.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.verification.derivation.affine import spread
from normdeploy.verification.derivation.attributes import difference
from normdeploy.verification.derivation.gauges import NOISE, Claim, Floats, along, ranked, uniform
from normdeploy.verification.derivation.numbers import Wrong, compare
from normdeploy.verification.derivation.relation import Finding, Proof, Relation
from normdeploy.verification.derivation.same import COMMUTING
from normdeploy.verification.derivation.side import inputs_of, kind

Carried = tuple[Floats, Floats] | Wrong | str
"""s and t of a result, or why there are none."""

Claims = list[Claim | None]
"""Of what is read, in order; None for constants."""

Carry = Callable[[Relation, ir.Node, ir.Node, Claims], Carried]


def confirm_carried(relation: Relation, node: ir.Node, origin: ir.Node) -> Finding:
    """Confirm an operator that reads scaled or shifted values.

    Args:
        node: of the file. origin: of the source, of the same kind.
    """
    carry = CARRIES.get(kind(node))
    if carry is None or kind(origin) != kind(node):
        return f"{kind(node)} has no law for what is scaled or shifted"
    text = difference(relation.source, origin, relation.file, node)
    if text:
        return f"{kind(node)}: {text}"
    ours, theirs = inputs_of(origin), inputs_of(node)
    if len(ours) != len(theirs):
        return f"{kind(node)} reads {len(theirs)} operands; expected {len(ours)}"
    reason: Finding = "what it reads is not known"
    orders = [theirs, theirs[::-1]] if len(theirs) == 2 and kind(node) in COMMUTING else [theirs]
    for order in orders:
        claims = [relation.by(w, v) for w, v in zip(ours, order, strict=True)]
        if claims[0] is None and not relation.source.is_constant(ours[0]):
            continue
        for_carry = node if order is theirs else _turned(node)
        found = carry(relation, for_carry, origin, claims)
        if not isinstance(found, tuple):
            reason = found
            continue
        known = Claim(node.outputs[0], *found, any(claim is not None and claim.assumed for claim in claims))
        return Proof("the gauge passes", ((origin.outputs[0], known),), (node,))
    return reason


def _turned(node: ir.Node) -> ir.Node:
    return ir.Node(node.domain, node.op_type, list(node.inputs)[::-1])


def _others_equal(relation: Relation, node: ir.Node, origin: ir.Node, start: int) -> str:
    for w, v in zip(inputs_of(origin)[start:], inputs_of(node)[start:], strict=True):
        want = None if w is None else relation.source.numbers(w)
        have = None if v is None else relation.file.numbers(v)
        if (w is None) != (v is None) or (w is not None and (want is None or have is None)):
            return f"{kind(node)}: an operand is not known"
        if want is not None and have is not None and not all(map(np.array_equal, want, have)):
            return f"{kind(node)}: operand {v.name if v else ''!r} differs"
    return ""


def _homogeneous(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    claim = claims[0]
    assert claim is not None
    text = _others_equal(relation, node, origin, 1)
    if text:
        return text
    if (claim.scale <= 0).any() or claim.shift.any():
        return f"{kind(node)} is not linear where what it reads is shifted, or scaled by a negative number"
    return claim.scale, claim.shift


def _sum(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    if any(claim is None for claim in claims):
        return f"{kind(node)}: what it reads is not known"
    known = [claim for claim in claims if claim is not None]
    scale = known[0].scale
    for claim in known[1:]:
        if not bool((np.abs(claim.scale - scale) <= NOISE * 10 * np.abs(scale)).all()):
            return f"{kind(node)} adds what is scaled differently"
    signs = [1.0, -1.0] if kind(node) == "Sub" else [1.0] * len(known)
    terms = [sign * claim.shift for sign, claim in zip(signs, known, strict=True)]
    shift, size = sum(terms), sum(np.abs(term) for term in terms)
    shift = np.where(np.abs(shift) <= NOISE * size, 0.0, shift)
    return scale, np.asarray(shift)


def _product(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    if any(claim is None for claim in claims) or len(claims) != 2:
        return f"{kind(node)}: what it reads is not known"
    one, other = (claim for claim in claims if claim is not None)
    if one.shift.any() or other.shift.any():
        return f"{kind(node)} multiplies what is shifted"
    if kind(node) == "Div":
        return (one.scale / other.scale, one.shift * 0) if (other.scale != 0).all() else "a division by a scale of 0"
    return one.scale * other.scale, np.zeros_like(one.shift * other.shift)


def _matmul(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    if any(claim is None for claim in claims) or len(claims) != 2:
        return "MatMul: what it reads is not known"
    one, other = (claim for claim in claims if claim is not None)
    if one.shift.any() or other.shift.any() or one.scale.ndim < 2 or other.scale.ndim < 2:
        return "MatMul multiplies what is shifted"
    inner = one.scale.swapaxes(-1, -2) if one.scale.shape[-1] > 1 else np.ones((1, 1))
    summed = (inner if inner.shape[-1] == 1 else None), other.scale
    if one.scale.shape[-1] > 1 or other.scale.shape[-2] > 1:
        # what is summed over may be scaled on both sides, if the product is one number
        if summed[0] is None or one.scale.size != one.scale.shape[-1] or other.scale.size != other.scale.shape[-2]:
            return "MatMul sums over what is scaled differently"
        product = inner.reshape(-1) * other.scale.reshape(-1)
        if not bool((np.abs(product - product[0]) <= 10 * NOISE * np.abs(product[0])).all()):
            return "MatMul sums over what is scaled differently"
        return np.full((1,) * max(one.scale.ndim, other.scale.ndim), product[0]), np.zeros(())
    return one.scale * other.scale, np.zeros(())


def _choice(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    first = claims[0]
    if first is None or any(claim is None for claim in claims):
        return _against_constant(relation, node, origin, claims)
    known = [claim for claim in claims if claim is not None]
    same = all(np.array_equal(c.scale, first.scale) and np.array_equal(c.shift, first.shift) for c in known)
    if not same or (first.scale <= 0).any():
        return f"{kind(node)} compares what is scaled differently, or by a negative number"
    return first.scale, first.shift


def _against_constant(
    relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims
) -> Carried:
    """max(s x' + t, c) = s max(x', (c - t) / s) + t for s > 0."""
    at = [index for index, claim in enumerate(claims) if claim is None]
    if len(claims) != 2 or len(at) != 1:
        return f"{kind(node)}: what it reads is not known"
    claim = claims[1 - at[0]]
    want, have = spread(relation.source, origin.inputs[at[0]]), relation.file.constant(node.inputs[at[0]])
    if claim is None or want is None or have is None or (claim.scale <= 0).any():
        return f"{kind(node)}: what it reads is not known"
    expected = (want[0] - claim.shift) / claim.scale
    wrong = _constant_wrong(node.inputs[at[0]], have, expected)
    return wrong or (claim.scale, claim.shift)


def _constant_wrong(value: ir.Value | None, have: Floats, expected: Floats) -> Wrong | None:
    stored = constant_tensor(value)
    expected = np.asarray(expected)
    if expected.size == 1 and have.size == 1:
        expected = expected.reshape(have.shape)
    aligned = ranked(have, max(expected.ndim, have.ndim))
    wrong = compare(aligned if aligned is not None else have, None if stored is None else stored.dtype, expected)
    return None if wrong is None else Wrong(f"operand {value.name if value else ''!r}: {wrong.text}", wrong.rounding)


def _clip(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    """clip(s x' + t, a, b) = s clip(x', (a - t) / s, (b - t) / s) + t for s > 0; bounds change places below 0."""
    claim = claims[0]
    assert claim is not None
    scale, shift = uniform(claim.scale), uniform(claim.shift)
    if scale is None or shift is None or scale <= 0:
        return "Clip has one bound for what is scaled differently, or by a negative number"
    ours, theirs = inputs_of(origin), inputs_of(node)
    for w, v in zip(ours[1:], theirs[1:], strict=True):
        want, have = relation.source.constant(w), relation.file.constant(v)
        if (w is None) != (v is None) or (w is not None and (want is None or have is None)):
            return "Clip: a bound is not known"
        if want is not None and have is not None:
            wrong = _constant_wrong(v, have, (want - shift) / scale)
            if wrong is not None:
                return wrong
    return claim.scale, claim.shift


def _pool(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    claim = claims[0]
    assert claim is not None
    rank = claim.scale.ndim
    if any(n != 1 for array in (claim.scale, claim.shift) for axis, n in enumerate(array.shape) if axis != 1) or rank < 3:
        return f"{kind(node)} takes together what is scaled differently"
    if kind(node) in ("MaxPool", "GlobalMaxPool") and (claim.scale <= 0).any():
        return f"{kind(node)} of what is scaled by a negative number"
    if len([output for output in node.outputs if output.name]) > 1 and (claim.scale <= 0).any():
        return f"{kind(node)} returns places"
    padded = any(node.attributes.get_ints("pads", ()) or ()) or node.attributes.get_int("ceil_mode", 0)
    padded = padded or node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID", None)
    if kind(node) == "AveragePool" and node.attributes.get_int("count_include_pad", 0) and padded and claim.shift.any():
        return "AveragePool counts zeros in where the source counts a shift"
    return claim.scale, claim.shift


def _reduction(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    claim = claims[0]
    assert claim is not None
    text = _others_equal(relation, node, origin, 1)
    axes = reduced(relation, origin, claim.scale.ndim)
    if text or axes is None:
        return text or f"{kind(node)}: its axes are not known"
    if any(array.shape[axis] != 1 for array in (claim.scale, claim.shift) for axis in axes):
        return f"{kind(node)} takes together what is scaled differently"
    if kind(node) != "ReduceMean" and (claim.scale <= 0).any():
        return f"{kind(node)} of what is scaled by a negative number"
    if kind(node) not in ("ReduceMean", "ReduceMax", "ReduceMin") and claim.shift.any():
        return f"{kind(node)} of what is shifted"
    scale, shift = claim.scale, claim.shift
    if not node.attributes.get_int("keepdims", 1):
        scale, shift = scale.squeeze(axes), shift.squeeze(axes)
    return scale, shift


def reduced(relation: Relation, origin: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes that a reduction of the source takes together; None where they are not known."""
    inputs = inputs_of(origin)
    given = origin.attributes.get_ints("axes", None)
    if given is None and len(inputs) > 1:
        array = relation.source.constant(inputs[1])
        if array is None:
            return None
        given = [int(axis) for axis in array.reshape(-1)]
    if not given:
        return () if origin.attributes.get_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in given))


def _softmax(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    claim = claims[0]
    assert claim is not None
    axis = node.attributes.get_int("axis", -1)
    if (claim.scale != 1).any() or claim.shift.shape[axis] != 1 or relation.file.opset(node) < 13:
        return f"{kind(node)} of what is scaled, or shifted differently along its axis"
    return np.ones(()), np.zeros(())


def _where(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    if claims[0] is None or not claims[0].is_identity:
        return "Where: its condition is not known"
    found = _choice_of(claims[1:])
    if found is not None:
        return found
    at = [index for index in (1, 2) if claims[index] is None]
    claim = next((claim for claim in claims[1:] if claim is not None), None)
    if claim is None or len(at) != 1:
        return "Where: what it reads is scaled differently"
    want, have = spread(relation.source, origin.inputs[at[0]]), relation.file.constant(node.inputs[at[0]])
    if want is None or have is None:
        return "Where: what it reads is not known"
    wrong = _constant_wrong(node.inputs[at[0]], have, (want[0] - claim.shift) / claim.scale)
    return wrong or (claim.scale, claim.shift)


def _choice_of(claims: Claims) -> tuple[Floats, Floats] | None:
    known = [claim for claim in claims if claim is not None]
    if len(known) < len(claims):
        return None
    first = known[0]
    same = all(np.array_equal(c.scale, first.scale) and np.array_equal(c.shift, first.shift) for c in known)
    return (first.scale, first.shift) if same else None


def _resize(relation: Relation, node: ir.Node, origin: ir.Node, claims: Claims) -> Carried:
    claim = claims[0]
    assert claim is not None
    channel = along(claim.scale, 1, claim.scale.shape[1]) if claim.scale.ndim > 2 else None
    shifts = along(claim.shift, 1, claim.shift.shape[1]) if claim.scale.ndim > 2 else None
    crops = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    text = _others_equal(relation, node, origin, 1)
    if text or channel is None or shifts is None or crops or node.attributes.get_int("exclude_outside", 0):
        return text or "Resize takes together what is scaled differently"
    return claim.scale, claim.shift


CARRIES: dict[str, Carry] = {
    "Relu": _homogeneous, "LeakyRelu": _homogeneous, "Abs": _homogeneous, "PRelu": _homogeneous,
    "Add": _sum, "Sub": _sum, "Sum": _sum,
    "Mul": _product, "Div": _product, "MatMul": _matmul,
    "Max": _choice, "Min": _choice, "Clip": _clip, "Where": _where,
    "MaxPool": _pool, "AveragePool": _pool, "GlobalAveragePool": _pool, "GlobalMaxPool": _pool,
    "ReduceMean": _reduction, "ReduceSum": _reduction, "ReduceMax": _reduction, "ReduceMin": _reduction,
    "ReduceL1": _reduction, "ReduceL2": _reduction,
    "Softmax": _softmax, "LogSoftmax": _softmax, "Resize": _resize,
}  # fmt: skip
"""How each operator carries a gauge."""
