"""Elements that were moved, scaled and shifted, and came back to where they were."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import compress
from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.gauges import Claim, composed
from normdeploy.verification.derivation.laws.element_moves import FOLLOWED, confirm_moved
from normdeploy.verification.derivation.related.relation import Proof, Relation
from normdeploy.verification.derivation.side.affine_laws import step_of
from normdeploy.verification.derivation.side.beyond import cuts
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.movement import DEPTH, MOVES, Lost, run_moves
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.zero_guards import guard_beside


def returned(relation: Relation, w: ir.Value, v: ir.Value) -> Claim | None:
    """Return the claim for a value of the source whose elements moved, were scaled and shifted, and came back."""
    try:
        found = [_followed(relation, w, v, k, 0) for k in range(min(relation.file.assignments, FOLLOWED))]
    except (Lost, GraphError, RuntimeError, ValueError):
        return None
    pairs = []
    for ids, scale, shift, _ in found:
        if not torch.equal(ids.reshape(-1), torch.arange(ids.numel(), dtype=torch.float64)):
            return None
        pairs.append((compress(scale.numpy()), compress(shift.numpy())))
    if not pairs or any(s.shape != pairs[0][0].shape or (s != pairs[0][0]).any() for s, _ in pairs):
        return None
    if any(t.shape != pairs[0][1].shape or (t != pairs[0][1]).any() for _, t in pairs):
        return None
    if relation.source.shapes(w) != relation.file.shapes(v):
        return None
    return Claim(v, *composed(pairs[0][0], pairs[0][1], np.ones(()), np.zeros(())), any(one[3] for one in found))


def _followed(relation: Relation, w: ir.Value, v: ir.Value, k: int, depth: int) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return identifiers, scales and shifts of a value's elements, and whether that is only assumed.

    A scale or shift has size 1 along axes where it does not vary; elements that are moved take it along whole, but one
    number, which stays one wherever they go.
    """
    side = relation.source
    for claim in relation.by_source.get(w, ()):
        if claim.value is v and not claim.guard and not claim.tells_less:
            shape = relation.file.shapes(v)[k]
            ids = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)
            return ids, torch.from_numpy(claim.scale), torch.from_numpy(claim.shift), claim.assumed
    step, node = step_of(side, w), w.producer()
    shapes = side.shapes(w)
    if depth > DEPTH or node is None or not shapes or 0 in shapes[k] or w in side.opened or cuts(side, node):
        raise Lost(f"{w.name!r} is not known")
    if step is not None:
        ids, scale, shift, assumed = _followed(relation, step.value, v, k, depth + 1)
        if guard_beside(side, w, step.shift, step.scale * shift.numpy()):
            raise Lost(f"{w.name!r} is kept from 0")
        total, moved = composed(step.scale, step.shift, scale.numpy(), shift.numpy())
        return ids, torch.from_numpy(total), torch.from_numpy(moved), assumed
    if kind(node) == "Concat":
        return _joined(relation, node, v, k, depth)
    if kind(node) not in MOVES or node.inputs[0] is None:
        raise Lost(f"{w.name!r} is not known")
    first = _moved_tensor(side, node)
    ids, scale, shift, assumed = _followed(relation, first, v, k, depth + 1)
    made = run_moves(side, w, {first: ids}.get, k)
    gauge = [
        part.reshape((1,) * made.dim())
        if part.numel() == 1
        else torch.from_numpy(compress(run_moves(side, w, {first: part.expand(ids.shape)}.get, k).numpy()))
        for part in (scale, shift)
    ]
    return made, gauge[0], gauge[1], assumed


def _moved_tensor(side: Side, node: ir.Node) -> ir.Value:
    """Return what an operator moves: of one part of a sequence, as torch writes x.split(n), what was split."""
    first = node.inputs[0]
    source = None if first is None else first.producer()
    if (
        kind(node) == "SequenceAt"
        and source is not None
        and kind(source) == "SplitToSequence"
        and not cuts(side, source)
    ):
        first = source.inputs[0]
    assert first is not None
    return first


def _joined(relation: Relation, node: ir.Node, v: ir.Value, k: int, depth: int) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return what :func:`_followed` does of parts that are joined."""
    parts = [_followed(relation, value, v, k, depth + 1) for value in inputs_of(node) if value is not None]
    axis = axis_of(node.attributes.get_int("axis", 0), parts[0][0].dim())
    scale = torch.cat([scale.expand(ids.shape) for ids, scale, _, _ in parts], axis)
    shift = torch.cat([shift.expand(ids.shape) for ids, _, shift, _ in parts], axis)
    ids, assumed = torch.cat([one[0] for one in parts], axis), any(one[3] for one in parts)
    return ids, torch.from_numpy(compress(scale.numpy())), torch.from_numpy(compress(shift.numpy())), assumed


def further(relation: Relation, w: ir.Value, v: ir.Value) -> Claim | None:
    """Return the claim for a value of the source that moving, not computing, makes of what v holds, or the reverse."""
    found = returned(relation, w, v)
    moved = confirm_moved(relation, v, w) if found is None else None
    return next((claim for _, claim in moved.claims), None) if isinstance(moved, Proof) else found
