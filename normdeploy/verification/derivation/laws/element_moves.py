"""Operators that only move elements: run on identifiers, two ways of moving are one if all elements land alike.

The source may scale and shift what it moves: its gauges are run through the same operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, compress
from normdeploy.verification.derivation.gauges import Claim, filled, uniform
from normdeploy.verification.derivation.laws.landing import beside_constants, same_constants, spread, where_landed
from normdeploy.verification.derivation.related.lost_digits import still_lost
from normdeploy.verification.derivation.related.relation import Finding, Moved, Proof, Relation
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.beyond import cuts, key
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.movement import (
    DEPTH,
    Leaf,
    Lost,
    moved_by,
    moves,
    way_of,
    written_over,
)
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.zero_guards import smaller_guard

FOLLOWED = 2
"""Assignments of sizes at which elements are followed: the example's, and one where each dimension grows by another
amount. Shapes agree at all of them."""


def confirm_moved(
    relation: Relation, value: ir.Value, w: ir.Value, asked: tuple[Floats, Floats] | None = None
) -> Finding:
    """Confirm that a value of the file holds the elements of the source's at the same places.

    Args:
        relation: what is known. value: of the file. w: of the source.
        asked: of which scale and shift w is to be, where constants beside what is moved leave that open.
    """
    node = value.producer()
    if node is None or not moves(node):
        return ""
    if relation.file.type_of(value) != relation.source.type_of(w):
        return "it is of another type"
    try:
        leaves = list(
            dict.fromkeys(_leaves(relation.file, value, lambda v: v in relation.by_file or v in relation.in_again, 0))
        )
        claims = _read_by(relation, w, set(leaves))
        followed = range(min(relation.file.assignments, FOLLOWED))
        shown = [_compare(relation, value, w, leaves, claims, asked, k) for k in followed]
        _require_settled(relation, leaves, (value, set(leaves)), (w, set(claims)))
    except (Lost, GraphError, RuntimeError, ValueError) as error:
        return f"{kind(node)}: {error}"
    if not shown:
        return "no sizes are known"
    gauge = _at_all_sizes(shown)
    if gauge is None:
        return f"{kind(node)}: how it is scaled depends on sizes"
    scale, shift, lost, again = gauge
    assumed = any(claim.assumed for claim in claims.values())
    nodes = tuple(_between(relation.file, value, set(leaves)))
    guard = smaller_guard(*(claim.guard for claim in claims.values()))
    known = Claim(value, scale, shift, assumed, guard=guard, again=again, lost=lost)
    return Proof("moves the same elements", ((w, known),), nodes)


def _at_all_sizes(shown: Sequence[Moved]) -> tuple[Floats, Floats, Floats, int | None] | None:
    """Return the gauge that is one at all sizes, and the axis along which it begins again; None where there is none."""
    if all(np.array_equal(part, first) for each in shown for part, first in zip(each, shown[0], strict=True)):
        return *shown[0], None
    for axis in range(shown[0][0].ndim):
        most = math.gcd(*(n for gauge in shown for part in gauge if (n := part.shape[axis]) > 1))
        for length in (n for n in range(2, most + 1) if most % n == 0):
            first = [part.take(range(min(length, part.shape[axis])), axis) for part in shown[0]]
            pairs = [pair for gauge in shown for pair in zip(first, gauge, strict=True)]
            if all(np.array_equal(filled(one, axis, part.shape[axis]), part) for one, part in pairs):
                return first[0], first[1], first[2], axis
    return None


def _leaves(
    side: Side, value: ir.Value, known: Callable[[ir.Value], bool], depth: int, *, covered: bool = False
) -> Iterator[ir.Value]:
    """Return what a value's elements come from: known values, and none but constants besides.

    Args:
        side, value: the graph, and what is asked for. known: tells where to stop. depth: of the operator behind.
        covered: what is not known may be written over.
    """
    node = value.producer()
    if depth and known(value):
        yield value
        return
    if side.is_constant(value):
        return
    if node is None or not moves(node) or depth > DEPTH:
        if covered:
            return
        raise Lost(f"{value.name!r} is not known")
    if side.picks(node):
        raise Lost(f"which part of {node.inputs[0].name if node.inputs[0] else ''!r} is read depends on sizes")
    given = moved_by(node, side)
    for operand in given:
        yield from _leaves(side, operand, known, depth + 1, covered=covered or operand is written_over(node, given))


def _between(side: Side, value: ir.Value, leaves: set[ir.Value]) -> Iterator[ir.Node]:
    node = value.producer()
    if node is None or value in leaves or side.is_constant(value) or not moves(node):
        return
    yield node
    for operand in moved_by(node, side):
        yield from _between(side, operand, leaves)


def _require_settled(
    relation: Relation,
    leaves: list[ir.Value],
    have: tuple[ir.Value, set[ir.Value]],
    want: tuple[ir.Value, set[ir.Value]],
) -> None:
    """Require that elements which land alike at the sizes that are followed do so at all others.

    Args:
        relation: the graphs. leaves: of the file. have, want: a value of the file and of the source, and where it
            comes from.

    Raises:
        Lost: they may not.
    """
    if any(leaf in relation.file.opened or 0 in shape for leaf in leaves for shape in relation.file.shapes(leaf)):
        raise Lost("how much it moves depends on what is fed")
    sides = ((relation.file, have), (relation.source, want))
    found = [[node for node in _between(side, *at) if cuts(side, node)] for side, at in sides]
    if len(found[0]) != len(found[1]):
        raise Lost("what it moves at other sizes is not followed")
    for node, origin in zip(*found, strict=True):
        pairs = zip(inputs_of(origin)[1:], inputs_of(node)[1:], strict=False)
        same = kind(node) == kind(origin) and not difference(relation.source, origin, relation.file, node)
        same &= len(inputs_of(node)) == len(inputs_of(origin))
        if not same or any(key(relation.source, a) != key(relation.file, b) for a, b in pairs):
            raise Lost("what it moves at other sizes is not followed")


def _read_by(relation: Relation, w: ir.Value, leaves: set[ir.Value]) -> dict[ir.Value, Claim]:
    """Return what stands for each value of the source that the elements of w come from."""
    found: dict[ir.Value, Claim] = {}

    def known(value: ir.Value) -> bool:
        claims = [c for c in (*relation.express(value), *relation.again.get(value, ())) if c.value in leaves]
        if not claims:  # what was moved, scaled and moved back is found where it is asked for
            claims = [claim for leaf in leaves if (claim := relation.by(value, leaf)) is not None]
        if claims:
            found[value] = min(claims, key=lambda claim: claim.assumed)
        return bool(claims)

    list(_leaves(relation.source, w, known, 0))
    return found


def _compare(
    relation: Relation,
    value: ir.Value,
    w: ir.Value,
    leaves: list[ir.Value],
    claims: dict[ir.Value, Claim],
    asked: tuple[Floats, Floats] | None,
    k: int,
) -> Moved:
    """Return scale, shift and loss of w at one assignment of sizes."""

    def of_source(pick: Callable[[ir.Value, Claim], Tensor]) -> Leaf:
        return lambda u: None if u not in claims else pick(u, claims[u])

    places = {leaf: place for place, leaf in enumerate(leaves)}
    ways = (
        way_of(relation.file, value, places.get, k),
        way_of(relation.source, w, lambda u: places[claims[u].value] if u in claims else None, k),
        tuple(relation.file.shapes(leaf)[k] for leaf in leaves),
    )
    told = None not in ways
    if told and ways in relation.moved:  # layers move alike
        landed = relation.moved[ways]
    else:
        landed = where_landed(relation, value, w, leaves, of_source, k)
        if told:
            relation.moved[ways] = landed
    if landed is None:
        raise Lost("elements land elsewhere than in the source")
    rank, constants = landed
    if all(claim.is_identity for claim in claims.values()):
        if constants:
            float64 = relation.file.type_of(value) in FLOATS
            dtype = torch.float64 if float64 else torch.int64  # not every integer is a float64
            zeros = {leaf: torch.zeros(relation.file.shapes(leaf)[k], dtype=dtype) for leaf in leaves}
            same_constants(relation, value, w, of_source(lambda _, c: zeros[c.value]), zeros, k)
        ones = np.ones((1,) * rank)
        return ones, ones * 0, ones * 0
    if constants:
        if asked is None:
            raise Lost("constants are joined to what is scaled or shifted")
        scale, shift = beside_constants(relation, value, w, of_source, claims, asked, k)
        return scale, shift, still_lost(claims.values(), shift, in_place=False)
    gauges = tuple((claim.scale, claim.shift, np.asarray(claim.lost)) for claim in claims.values())
    whole = (ways, *((array.shape, array.tobytes()) for gauge in gauges for array in gauge)) if told else None
    known = None if whole is None else relation.moved_gauges.get(whole)
    if known is not None:
        return known

    def part(name: str, place: int) -> Floats:
        held = [gauge[place].reshape(-1) for gauge in gauges]
        one = uniform(np.concatenate(held)) if held else None
        if one is not None:  # it is one number wherever it lands
            return np.full((1,) * rank, one)
        return compress(spread(relation, w, of_source, name, k))

    moved = part("scale", 0), part("shift", 1), part("lost", 2)
    if whole is not None:
        relation.moved_gauges[whole] = moved
    return moved
