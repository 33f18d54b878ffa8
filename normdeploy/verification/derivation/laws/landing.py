"""Where elements land that two graphs move, by what they are scaled and shifted there, and the constants among them.

Each function looks at one assignment of sizes. What a leaf of the source holds is what the claim about it says of the
file's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.verification.derivation.gauges import Claim, alike, filled, radius
from normdeploy.verification.derivation.related.relation import Relation
from normdeploy.verification.derivation.side.movement import Leaf, Lost, run_moves

OfSource = Callable[[Callable[[ir.Value, Claim], Tensor]], Leaf]
"""Makes of what a claim about a value of the source stands for what the leaves of a run are."""

_MOST = 1 << 24
"""Elements of a tensor that are followed."""

_UNKNOWN = -2.0
"""Stands for elements that are not known, which may be written over; constants are -1."""


def spread(relation: Relation, w: ir.Value, of_source: OfSource, name: str, k: int) -> Floats:
    """Return by how much each element of w is scaled, or shifted, of those that are moved there."""

    def full(u: ir.Value, claim: Claim) -> Tensor:
        shape = relation.source.shapes(u)[k]
        part = filled(getattr(claim, name), claim.again, 0 if claim.again is None else shape[claim.again])
        return as_operand(part).expand(shape)

    return run_moves(relation.source, w, of_source(full), k, unknown=0.0).numpy()


def beside_constants(
    relation: Relation,
    value: ir.Value,
    w: ir.Value,
    of_source: OfSource,
    claims: dict[ir.Value, Claim],
    asked: tuple[Floats, Floats],
    k: int,
) -> tuple[Floats, Floats]:
    """Return the scale and the shift that are asked of w, if those of what is moved, and each constant, agree with it.

    A constant c stands as (c - t) / s: zeros are of any scale.

    Raises:
        Lost: they do not.
    """

    def zeros(u: ir.Value, _: Claim) -> Tensor:
        return torch.zeros(relation.source.shapes(u)[k], dtype=torch.float64)

    want = run_moves(relation.source, w, of_source(zeros), k, unknown=0.0).numpy()
    held = run_moves(relation.source, w, of_source(zeros), k, marked=True, unknown=0.0).numpy() < 0
    scale, shift = (np.broadcast_to(array, want.shape) for array in asked)
    for name, array in (("scale", scale), ("shift", shift)):
        if not alike(spread(relation, w, of_source, name, k)[~held], array[~held]):
            raise Lost("what is joined to constants is not scaled or shifted as is asked")
    have = run_moves(relation.file, value, {c.value: zeros(u, c) for u, c in claims.items()}.get, k).numpy()
    most = np.abs(scale) * radius(have, relation.file.type_of(value)) * (1 + 1e-6)
    if not (np.abs(want - scale * have - shift) <= most)[held].all():
        raise Lost("constants that are joined to what is scaled or shifted differ")
    return asked


def where_landed(
    relation: Relation,
    value: ir.Value,
    w: ir.Value,
    leaves: list[ir.Value],
    of_source: OfSource,
    k: int,
) -> tuple[int, bool] | None:
    """Run identifiers both ways at one assignment of sizes; return what :attr:`.Relation.moved` holds."""
    identifiers: dict[ir.Value, Tensor] = {}
    start = 0
    for leaf in leaves:
        shape = relation.file.shapes(leaf)[k]
        count = int(np.prod(shape))
        identifiers[leaf] = torch.arange(start, start + count, dtype=torch.float64).reshape(shape)
        start += count
    if start > _MOST:
        raise Lost("too many elements to follow")
    theirs = run_moves(relation.file, value, identifiers.get, k, marked=True)
    ours = run_moves(relation.source, w, of_source(lambda _, c: identifiers[c.value]), k, marked=True, unknown=_UNKNOWN)
    if theirs.shape != ours.shape or not torch.equal(theirs, ours):
        return None
    return ours.dim(), bool((theirs < 0).any())


def same_constants(
    relation: Relation, value: ir.Value, w: ir.Value, zeros: Leaf, of_file: dict[ir.Value, Tensor], k: int
) -> None:
    """Require that constants which are moved along are the same in both graphs.

    Raises:
        Lost: one differs.
    """
    have = run_moves(relation.file, value, of_file.get, k).numpy()
    want = run_moves(relation.source, w, zeros, k, unknown=0.0).numpy()
    if relation.file.type_of(value) in FLOATS:
        good = np.abs(have - want) <= radius(want, relation.file.type_of(value)) * (1 + 1e-6)
    else:
        good = have == want
    if not good.all():
        raise Lost("constants that are joined differ")
