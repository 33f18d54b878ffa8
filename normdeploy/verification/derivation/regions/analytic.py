"""Regions of operators that are analytic functions, such as a norm spelled out and the operator it became.

Sums, products, quotients, roots of what is positive, averages and norms are analytic in what they read, and so is what
is made of them. Two analytic functions that are not one differ almost everywhere: at points drawn from a continuous
distribution, equality is identity with probability 1. (Rows that Softmax wrote lie on a plane, beside which a right
file may differ: there nothing is decided.) So both regions are evaluated in float64 at random points, some
of a spread near each epsilon; where a small or a large number counts at none of them, nothing is confirmed. Constants
of the file take part unrounded, as the derivation says they were; that is believed only where each stored number is
within half a unit in the last place of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Floats, Shape
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.graph.summed_axis import summed_axis
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import Claim, is_as_fine
from normdeploy.verification.derivation.regions.compared_points import points
from normdeploy.verification.derivation.regions.differences import differs, not_finite_alike
from normdeploy.verification.derivation.regions.region_losses import lost_at
from normdeploy.verification.derivation.regions.smooth import is_square, smooth
from normdeploy.verification.derivation.regions.two_regions import Point, Regions
from normdeploy.verification.derivation.regions.unseen_constants import unseen_constants
from normdeploy.verification.derivation.related.lost_digits import FORGOTTEN, forgets
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.related.unrounded import Constants, Unlike
from normdeploy.verification.derivation.side.affine_laws import back
from normdeploy.verification.derivation.side.beyond import cuts, decides, keeps_type
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.movement import MOVES, moves, writes, writes_once
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.value_facts import ranks_in

ANALYTIC = MOVES | frozenset({
    "Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Reciprocal", "Sqrt", "Pow", "ReduceMean", "ReduceSum",
    "ReduceSumSquare", "ReduceL2", "LayerNormalization", "RMSNormalization", "InstanceNormalization",
    "GroupNormalization", "BatchNormalization", "MatMul", "Gemm", "Conv", "ConvTranspose", "AveragePool",
    "GlobalAveragePool", "Cast", "CastLike", "Dropout", "Einsum", "LpNormalization", "MeanVarianceNormalization", "Pad",
})  # fmt: skip
"""Operators that are analytic wherever they are defined; as few as make linear maps and norms."""

_ROOTS = frozenset({
    "Sqrt", "Pow", "Reciprocal", "Div", "ReduceL2", "LayerNormalization", "RMSNormalization", "InstanceNormalization",
    "GroupNormalization", "LpNormalization", "MeanVarianceNormalization",
})  # fmt: skip
"""Operators in which a number may count at some spreads alone, as an epsilon does; the others make polynomials."""

_MOST_NODES = 128
"""Operators of a region that compute."""

_MOST_MOVES = 1024
"""Operators of a region that only move elements: a border that is written around a picture takes some thirty."""

_SCALES = (1.0, 1e-3, 1e-6, 30.0)
"""Spreads of the points, of a variance like the epsilons in use and far above it."""


class _Outside(Exception):
    """A region reads what is not known, or holds what is not analytic."""


def confirm_analytic(relation: Relation, value: ir.Value, target: Target, constants: Constants) -> Finding:
    """Confirm that a region of the file is one of the source."""
    node = value.producer()
    if node is None or not _is_analytic(node) or (target.scale == 0).any():
        return ""
    # what a Where always chooses is followed, not the Where
    same = takewhile(lambda step: step.is_nothing, back(relation.source, target.value))
    target = replace(target, value=[step.value for step in same][-1])
    moves: dict[ir.Value, ir.Node] = {}
    found = _confirmed(relation, node, value, target, constants, moves)
    if moves and not isinstance(found, Proof):
        return _confirmed(relation, node, value, target, constants, None)
    return found


def _confirmed(
    relation: Relation,
    node: ir.Node,
    value: ir.Value,
    target: Target,
    constants: Constants,
    moves: dict[ir.Value, ir.Node] | None,
) -> Finding:
    """Confirm it from what is known; if ``moves`` is given, also from what a Transpose makes something known of."""

    def begins(v: ir.Value) -> bool:
        return v is not value and (_is_told(relation, v) or (moves is not None and _is_moved(relation, v, moves)))

    try:
        leaves: dict[ir.Value, None] = {}
        theirs = _region(relation.file, value, begins, leaves)
        claims: dict[ir.Value, Claim] = {}
        there = {**leaves, **dict.fromkeys(moves or ())}
        ours = _region(relation.source, target.value, lambda w: _claimed(relation, w, there, claims), {})
        _require_as_fine(relation, theirs, value, ours, target.value)
    except _Outside as error:
        return f"{kind(node)}: {error}"
    if not ours and not any(claim.value in there for claim in claims.values()):
        return "nothing of the source is computed there"
    if forgets(claims.values(), target.scale, target.shift):
        return f"{kind(node)}: {FORGOTTEN}"
    pair = Regions(relation, value, target, theirs, ours, claims, constants, moves or {})
    gauges = [target.scale, target.shift, *(array for c in claims.values() for array in (c.scale, c.shift))]
    roots = any(kind(node) in _ROOTS for node in (*theirs, *ours))
    try:
        whole = target.rows or bool(moves) or any(claim.rows for claim in claims.values())
        shapes = points(relation, theirs, ours, list(leaves), gauges, whole=whole)
        found = _compared(pair, shapes, roots=roots)
    except Unlike as error:
        return replace(error.wrong, parts=tuple(theirs))
    if isinstance(found, str):
        return f"{kind(node)}: {found}"
    if isinstance(found, Wrong) and any(summed_axis(leaf, ranks_in(relation.file)) is not None for leaf in leaves):
        return f"{kind(node)}: it reads rows that sum to one, and differs where they do not"
    if isinstance(found, Wrong):
        # what another rounding of some constant explains is told of one operator: no number is known to be wrong
        return Wrong(
            f"{kind(node)}: {found.text}",
            found.rounding,
            parts=() if found.rounding else tuple(theirs),
            last=found.last,
        )
    if unseen_constants(pair):
        return f"{kind(node)}: some of its constants' numbers are too small beside others to be seen at any point"
    assumed = any(claim.assumed for claim in claims.values())
    known = Claim(value, target.scale, target.shift, assumed, target.rows, lost=found)
    return Proof("analytic: equal at random points", ((target.value, known),), tuple(theirs))


def _compared(
    regions: Regions, shapes: Iterator[tuple[int, Mapping[ir.Value, Shape]]], *, roots: bool
) -> Wrong | str | Floats:
    """Return how two regions differ at random points, or why that is not decided; else what digits the file loses."""
    drawn: list[Point] = []
    undecided = ""
    lost: Floats = np.zeros(())
    slight: Wrong | None = (
        None  # rounding may explain it at one spread, as an epsilon beside a variance, and not at another
    )
    for number, (k, at) in enumerate(shapes):
        for scale in _SCALES if roots and number == 0 else _SCALES[:1]:
            for point in regions.drawn(at, k, scale):
                want, have, told = point.want, point.have, not_finite_alike(point.want, point.have)
                if told:
                    undecided, there = told, torch.isfinite(want)
                    want, have = want.where(there, 0.0), have.where(there, 0.0)
                wrong = differs(want, have)
                if wrong is not None and not wrong.rounding:
                    return wrong
                if told or (wrong is not None and regions.is_noise(point)):
                    continue  # it shows nothing: what is read is small beside a constant that a norm takes away
                slight = slight or wrong
                drawn.append(point)
                here = lost_at(regions, point) if scale == _SCALES[0] else lost
                if isinstance(here, str):
                    return here
                lost = np.maximum(lost, here)
    if slight is not None:
        return slight
    if undecided:
        return undecided
    if not any(point.want.numel() for point in drawn):
        return "nothing is computed at the sizes that are tried"
    return regions.unseen(drawn) or lost


def _is_told(relation: Relation, v: ir.Value) -> bool:
    """Tell whether a value of the file is known to stand for one of the source, or to hold its rows.

    Of a Cast that keeps each number what it reads is asked: the source may read that in both types. So it is of a
    square: drawn by itself it would be negative at times, where no root is.
    """
    node, side = v.producer(), relation.file
    read = node.inputs[0] if node is not None and node.inputs else None
    if node is not None and read is not None:
        exact = _converts(side, node) and is_as_fine(side.type_of(v), side.type_of(read))
        if (exact or is_square(side, node)) and _is_told(relation, read):
            return False
    return v in relation.by_file or v in relation.in_rows


def _is_moved(relation: Relation, v: ir.Value, moves: dict[ir.Value, ir.Node]) -> bool:
    """Tell whether a Transpose of a value is known: all elements are there. What it makes is added to ``moves``."""
    found = {n.outputs[0]: n for n in v.consumers() if kind(n) == "Transpose" and _is_told(relation, n.outputs[0])}
    moves.update(found)
    return bool(found)


def _claimed(relation: Relation, w: ir.Value, leaves: Mapping[ir.Value, None], claims: dict[ir.Value, Claim]) -> bool:
    same = [step.value for step in takewhile(lambda step: step.is_nothing, back(relation.source, w))]
    held = (claim for value in same for claim in (*relation.by_source.get(value, ()), *relation.rows.get(value, ())))
    found = [claim for claim in held if claim.value in leaves]
    if found:
        claims[w] = min(found, key=lambda claim: claim.assumed)
    return bool(found)


def _region(
    side: Side, value: ir.Value, known: Callable[[ir.Value], bool], leaves: dict[ir.Value, None]
) -> list[ir.Node]:
    """Return the operators that compute a value from known ones, in order."""
    found: dict[ir.Node, None] = {}
    counts = {False: 0, True: 0}
    queue = [value]
    while queue:
        current = queue.pop()
        if known(current):
            leaves[current] = None
            continue
        if side.is_sized(current):
            continue
        node = current.producer()
        if node is None or not _is_analytic(node):
            raise _Outside(f"{current.name!r} is not known")
        if side.picks(node):
            raise _Outside(f"which part of a constant is in {current.name!r} depends on sizes")
        if node not in found:
            found[node] = None
            counts[moves(node)] += 1
            queue += [read for read in inputs_of(node) if read is not None]
        if counts[False] > _MOST_NODES or counts[True] > _MOST_MOVES:
            raise _Outside("the region is too large")
    if not leaves and not found:
        raise _Outside("it reads nothing")
    for node in found:
        if node.attributes.get_int("training_mode", 0):
            raise _Outside("a norm of the batch")
        read = [v for v in inputs_of(node) if v is not None]
        if any(v in side.opened for v in (*read, *node.outputs)):
            raise _Outside("how large it is depends on what is fed")
        if cuts(side, node) or any(decides(side, v) for v in read):
            raise _Outside("what it is at other sizes is not followed")
        if writes(node) and not all(_written_once(side, node, k) for k in range(side.assignments)):
            raise _Outside("where it writes depends on what is fed, or some place is written twice")
        if not smooth(side, node):
            raise _Outside("a root of what may be the square of one number")
    return sorted(found, key=side.places.__getitem__)


def _require_as_fine(
    relation: Relation, theirs: list[ir.Node], value: ir.Value, ours: list[ir.Node], wanted: ir.Value
) -> None:
    """Refuse Casts by which the file keeps less than the source, or the source rounds to less than its result holds."""
    file, source = relation.file, relation.source
    if not any(_converts(source, node) for node in ours) and not any(_converts(file, node) for node in theirs):
        return
    final, types = source.type_of(wanted), {source.type_of(made) for node in ours for made in node.outputs}
    rounds = any(_converts(source, node) and not is_as_fine(source.type_of(node.outputs[0]), final) for node in ours)
    kept = {file.type_of(made) for node in theirs for made in node.outputs if made is not value}
    if rounds or not is_as_fine(file.type_of(value), final):
        raise _Outside("a Cast rounds")
    if not all(is_as_fine(its, other) for its in kept for other in (*types, final)):
        raise _Outside("it computes in a type that keeps less than the source's")


def _converts(side: Side, node: ir.Node) -> bool:
    return has(node, Trait.CONVERTS) and not keeps_type(side, node)


def _is_analytic(node: ir.Node) -> bool:
    return kind(node) in ANALYTIC or writes(node)


def _written_once(side: Side, node: ir.Node, k: int) -> bool:
    """Tell whether an operator writes at places that follow from sizes, and at each of them once."""
    into, places = node.inputs[:2]
    numbers = None if places is None else side.numbers(places)
    shapes = () if into is None else side.shapes(into)
    if numbers is None or not shapes:
        return False
    return writes_once(node, shapes[k], as_operand(numbers[k]))
