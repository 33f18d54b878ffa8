"""Maps and norms whose constants absorb a gauge."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.gauges import Claim, radius, ranked, stands_for_nothing
from normdeploy.verification.derivation.related.lost_digits import FORGOTTEN, forgets, losses
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare, worst
from normdeploy.verification.derivation.side.affine_laws import Affine, back
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.operands import inputs_of, kind, with_attributes
from normdeploy.verification.derivation.side.zero_guards import lost_guard


def confirm_affine(relation: Relation, value: ir.Value, target: Target) -> Finding:
    """Confirm y' = a' x' + c' where w = S x' + T: a' = S / s_y, c' = (T - t_y) / s_y."""
    reason: Finding = ""
    for step in back(relation.file, value):
        claim = relation.by(target.value, step.value) if step.nodes else None
        if claim is None or (target.scale == 0).any():
            continue
        held = relation.by_file.get(step.value, ())
        further = any(stands_for_nothing(other.scale).any() for _, other in held)
        # of what a scale of 0 leaves nothing of each is right, and which one is stored follows from one of them
        for one in (claim, *(relation.express(target.value, by=step.value) if further else ())):
            found = _absorbed(relation, value, target, step, one)
            if isinstance(found, Proof):
                return found
            reason = found or reason
    return reason


def _absorbed(relation: Relation, value: ir.Value, target: Target, step: Affine, claim: Claim) -> Finding:
    """Confirm it for one map of the file and one claim of what it reads."""
    sizes = (claim.summed + np.abs(target.shift)) / np.abs(target.scale)
    scale, shift = claim.scale / target.scale, (claim.shift - target.shift) / target.scale
    found: list[Wrong] = []
    for name, have, want, off, size in (
        ("scale", step.scale, scale, step.off_scale, 0.0),
        ("shift", step.shift, shift, step.off_shift, sizes),
    ):
        shape = np.broadcast_shapes(have.shape, want.shape, off.shape, np.shape(size))
        other = np.maximum(16 * off, 4 * radius(np.asarray(size), ir.DataType.FLOAT))
        wrong = compare(np.broadcast_to(have, shape), None, want, slack=off, size=size, other=other)
        found += [] if wrong is None else [wrong.of(f"{name} of {kind(step.nodes[0])}")]
    if found:
        return worst(found) or ""
    guarded = lost_guard(step.shift * target.scale, claim.shift - target.shift, claim.guard)
    if guarded:
        return f"shift of {kind(step.nodes[0])}: {guarded}"
    own = np.abs(claim.scale) + claim.summed
    dtype = relation.file.type_of(value)
    lost = losses(step.scale, claim.scale, ir.DataType.FLOAT, scale, target, step.off_shift, own, dtype)
    forgotten = claim.tells_less or forgets([claim], target.scale, target.shift)
    if forgotten or isinstance(lost, str):
        return f"{kind(step.nodes[0])}: {FORGOTTEN if forgotten else lost}"
    known = Claim(value, target.scale, target.shift, claim.assumed, lost=lost)
    return Proof("affine map: a' = a s_x / s_y", ((target.value, known),), step.nodes)


def confirm_norm(relation: Relation, node: ir.Node, origin: ir.Node, behind: Affine, target: Target) -> Finding:
    """Confirm a norm of s x' + t: it removes them, epsilon is divided by s^2, and its own scale and shift absorb.

    Args:
        node, origin: of one kind, of the file and the source. behind: the map of the source's. target: of the file's.
    """
    claim = relation.by(origin.inputs[0], node.inputs[0])
    rank = relation.rank(target.value)
    a, c = (None if rank is None else ranked(array, rank) for array in (behind.scale, behind.shift))
    if claim is None or rank is None or a is None or c is None:
        return f"what {kind(node)} reads is not known to be what the source's reads"
    text = difference(relation.source, _plain(origin), relation.file, _plain(node))
    if text:
        return f"{kind(node)}: {text}"
    instance = kind(node) == "InstanceNormalization"
    axis, along = (2 if instance else axis_of(n.attributes.get_int("axis", -1), rank) for n in (origin, node))
    if axis != along:
        return f"{kind(node)} is along axis {along}; expected {axis}"
    scale = claim.scale.reshape(-1)[0]
    if claim.tells_less or stands_for_nothing(claim.scale).any():
        return f"{kind(node)}: {FORGOTTEN}"
    over = claim.shift.shape[2:] if instance else claim.shift.shape[axis:]
    shifted = claim.shift.any() and (kind(node) == "RMSNormalization" or any(n != 1 for n in over))
    if claim.scale.size != 1 or scale <= 0 or shifted:
        return f"{kind(node)} of what is scaled or shifted differently within one statistic"
    epsilon = [n.attributes.get_float("epsilon", 1e-5) for n in (origin, node)]
    stored = np.array([epsilon[1]])
    if compare(stored, ir.DataType.FLOAT, np.array([epsilon[0] / scale**2])) is not None:
        return Wrong(f"epsilon of {kind(node)} is {epsilon[1]:.9g}; expected {epsilon[0] / scale**2:.12g}")
    ours, theirs = inputs_of(origin), inputs_of(node)
    pairs = []
    for side, inputs in ((relation.source, ours), (relation.file, theirs)):
        found = [side.constant(v) if v is not None else None for v in (*inputs[1:3], None, None)[:2]]
        present = [index < len(inputs) - 1 and inputs[index + 1] is not None for index in range(2)]
        if any(p and f is None for p, f in zip(present, found, strict=True)):
            return f"{kind(node)}: its scale or shift is computed"
        shape = (-1, *(1,) * (rank - 2)) if instance else None
        gamma = np.ones(()) if found[0] is None else found[0].reshape(shape) if shape else found[0]
        beta = np.zeros(()) if found[1] is None else found[1].reshape(shape) if shape else found[1]
        pairs.append((gamma, beta))
    (gamma, beta), (gamma_f, beta_f) = pairs
    want = a * gamma / target.scale
    shift = (a * beta + c - target.shift) / target.scale
    size = (np.abs(a * beta) + np.abs(c) + np.abs(target.shift)) / np.abs(target.scale)
    off: list[Wrong] = []
    for name, have, expected, terms, v in (
        ("scale", gamma_f, want, 0.0, theirs[1] if len(theirs) > 1 else None),
        ("shift", beta_f, shift, size, theirs[2] if len(theirs) > 2 else None),
    ):
        shape = np.broadcast_shapes(have.shape, np.shape(expected))
        wrong = compare(np.broadcast_to(have, shape), relation.file.stored_in(v), expected, size=terms)
        off += [] if wrong is None else [wrong.of(f"{name} of {kind(node)}")]
    if off:
        return worst(off) or ""
    dtype = relation.file.type_of(node.outputs[0])
    own = np.abs(want * target.scale) + np.abs(a * beta) + np.abs(c)
    lost = losses(gamma_f, a * gamma, dtype, a / target.scale, target, radius(beta_f, dtype), own, dtype)
    if isinstance(lost, str):
        return f"{kind(node)}: {lost}"
    known = Claim(node.outputs[0], target.scale, target.shift, claim.assumed, lost=lost)
    return Proof("norm: invariant, and its scale and shift absorb", ((target.value, known),), (node,))


def _plain(node: ir.Node) -> ir.Node:
    """Return an operator without its epsilon, to compare its other attributes."""
    kept = [a for a in node.attributes.values() if a.name not in ("epsilon", "stash_type", "axis")]
    return with_attributes(node, kept)
