"""Pointwise operators over rows: what holds w's rows in another shape, through f, holds f(w)'s.

A Reshape holds the rows of what it reads wherever the last axis stays.
A result's element depends on the operands' elements at its place alone. Where all operands hold the rows of what the
source's operator reads, in the order of memory, and constants are the same for every row, the result holds the rows of
the source's result: f(rows of w) = rows of f(w), also where f scales and shifts as :mod:`.carrying_laws` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import Claim, composed
from normdeploy.verification.derivation.laws.carrying_laws import carried
from normdeploy.verification.derivation.laws.pointwise import Reading
from normdeploy.verification.derivation.laws.same_operator import equal
from normdeploy.verification.derivation.regions.analytic import confirm_analytic
from normdeploy.verification.derivation.related.lost_digits import FORGOTTEN, forgets, still_lost
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.related.unrounded import Constants
from normdeploy.verification.derivation.side.affine_laws import back
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.movement import MOVES
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.zero_guards import smaller_guard

_PASSES = Trait.KEEPS_ORDER | Trait.RANDOM


def laws_over_rows(relation: Relation, value: ir.Value, target: Target, constants: Constants) -> Iterator[Finding]:
    """Yield what shows, or does not, that a value of the file holds the rows of one of the source.

    Args:
        relation: what is known. value: of the file. target: whose rows. constants: unrounded ones of the file.
    """
    node = value.producer()
    if node is not None and kind(node) in MOVES and has(node, Trait.KEEPS_ORDER):
        yield _in_another_shape(relation, node, target)
    for step in back(relation.source, target.value):
        origin = step.value.producer()
        if node is not None and origin is not None and kind(node) == kind(origin):
            found = _confirm(relation, node, origin)
            if not isinstance(found, Wrong) or step.gauges_as(target.scale, target.shift):
                yield found  # other numbers are no fault in what is meant to be scaled
    if target.hinted:
        yield confirm_analytic(relation, value, target, constants)


def _in_another_shape(relation: Relation, node: ir.Node, target: Target) -> Finding:
    """Confirm that a value of the file is another in another shape, which stands for the target, or holds its rows."""
    read = node.inputs[0]
    claim = relation.by(target.value, read)
    if claim is None and read is not None:
        claim = relation.known(target.value, read, rows=True)
    if claim is None:
        return ""
    if any(n != 1 for array in (claim.scale, claim.shift) for n in array.shape[:-1]):
        return f"{kind(node)}: its gauge varies from row to row"
    known = replace(claim, value=node.outputs[0], rows=True)
    return Proof("the same in another shape", ((target.value, known),), (node,))


def over_rows_nearby(relation: Relation, read: Sequence[ir.Value], value: ir.Value) -> Iterator[Target]:
    """Yield the values of the source whose rows a value may hold, by what its operator reads.

    Args:
        relation: what is known. read: by the operator. value: its result.
    """
    for operand in read:
        in_rows = [w for w, _ in relation.in_rows.get(operand, ())]
        near = [*in_rows, *(w for w, _ in relation.by_file.get(operand, ()))]
        near += [result for w in in_rows for usage in w.uses() for result in usage.node.outputs]
        for w in dict.fromkeys(near):
            rank = relation.rank(w)
            if rank is not None and relation.same_rows(w, value):
                yield Target(w, np.ones((1,) * rank), np.zeros((1,) * rank), rows=True)


def _confirm(relation: Relation, node: ir.Node, origin: ir.Node) -> Finding:
    """Confirm that a pointwise operator of the file works on the rows of what one of the source works on."""
    what = kind(node)
    if not has(node, Trait.POINTWISE) or has(node, _PASSES) or any(v.uses() for v in node.outputs[1:]):
        return ""
    text = difference(relation.source, origin, relation.file, node)
    ours, theirs = inputs_of(origin), inputs_of(node)
    if text or len(ours) != len(theirs):
        return f"{what}: {text or 'it reads another number of operands'}"
    reason: Finding = ""
    for order in (theirs, theirs[::-1]) if len(theirs) == 2 and has(node, Trait.COMMUTES) else (theirs,):
        pairs = list(zip(ours, order, strict=True))
        claims = [_of_operand(relation, w, v, (origin, node)) for w, v in pairs]
        open_at = next((claim for claim in claims if isinstance(claim, str)), None)
        if open_at is not None:
            reason = reason or open_at
            continue
        found = _carried(relation, node, origin, pairs, [None if isinstance(c, str) else c for c in claims])
        if isinstance(found, Proof):
            return found
        reason = found
    return reason


def _of_operand(
    relation: Relation, w: ir.Value | None, v: ir.Value | None, at: tuple[ir.Node, ir.Node]
) -> Claim | str | None:
    """Return what is known of an operand's rows, None for one that is the same for every row, or why it is neither."""
    if w is None or v is None:
        return None if w is v else f"{kind(at[1])}: an operand is missing"
    if relation.source.is_sized(w) and relation.file.is_sized(v):
        width = relation.source.shapes(at[0].outputs[0])[0][-1]
        same = all(_of_every_row(side, value, width) for side, value in ((relation.source, w), (relation.file, v)))
        return None if same else f"{kind(at[1])}: {v.name!r} differs from row to row"
    claim = relation.known(w, v, rows=True)
    if claim is None:
        return f"what it reads, {v.name!r}, is not known to hold the rows of {w.name!r}"
    pairs = zip((relation.source, relation.file), (w, v), at, strict=True)
    spread = any(side.shapes(value) != side.shapes(node.outputs[0]) for side, value, node in pairs)
    return f"{kind(at[1])}: {v.name!r} is spread over other operands" if spread else claim


def _of_every_row(side: Side, value: ir.Value, width: int) -> bool:
    """Tell whether a constant is one number, or one for each place of the last axis."""
    shapes = side.shapes(value)
    return bool(shapes) and all(math.prod(s[:-1]) == 1 and (not s or s[-1] in (1, width)) for s in shapes)


def _carried(
    relation: Relation,
    node: ir.Node,
    origin: ir.Node,
    pairs: list[tuple[ir.Value | None, ir.Value | None]],
    claims: list[Claim | None],
) -> Finding:
    """Return the claim about the result's rows, from those about the operands' rows."""
    known = [claim for claim in claims if claim is not None]
    assumed, scale, shift = any(claim.assumed for claim in known), np.ones(()), np.zeros(())
    lost = np.zeros(())
    if all(claim.is_identity for claim in known):
        found = [equal(relation, w, v, spreads=True) for (w, v), c in zip(pairs, claims, strict=True) if c is None]
        wrong = next((one for one in found if not isinstance(one, bool)), None)
        if wrong is not None:
            return wrong
    else:
        read = [v for _, v in pairs]
        turned = node if read == inputs_of(node) else ir.Node(node.domain, node.op_type, read)
        gauge = carried(Reading(relation, turned, origin, claims))
        if not isinstance(gauge, tuple):
            return gauge
        lost = still_lost(known, gauge[1], in_place=True)
        if forgets(known, *gauge, lost):
            return f"{kind(node)}: {FORGOTTEN}"
        scale, shift = composed(*gauge, np.ones(()), np.zeros(()))
    guard = smaller_guard(*(claim.guard for claim in known))
    result = Claim(node.outputs[0], scale, shift, assumed, rows=True, guard=guard, lost=lost)
    return Proof("pointwise over rows", ((origin.outputs[0], result),), (node,))
