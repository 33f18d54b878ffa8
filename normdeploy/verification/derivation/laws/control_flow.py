"""If, Loop and Scan: the same operator where its bodies compute the same from the same, operator by operator.

A body is looked at as a graph of its own, whose inputs are its own and what it reads from outside. What an If returns
may be scaled and shifted, equally in both branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.verification.derivation.gauges import Claim
from normdeploy.verification.derivation.laws.same_operator import equal, same_results
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.body_graphs import bodies_of, opened
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind, with_attributes
from normdeploy.verification.derivation.side.zero_guards import smaller_guard


def confirm_bodies(
    relation: Relation, node: ir.Node, origin: ir.Node, go: Callable[[Relation], Wrong | str]
) -> Finding:
    """Confirm an operator with bodies.

    Args:
        node: of the file. origin: of the source.
        go: goes through the operators of a body, adds claims; returns what is open, "" where nothing is.
    """
    ours, theirs = bodies_of(origin), bodies_of(node)
    if not theirs or kind(node) != kind(origin):
        return ""
    text = difference(relation.source, _plain(origin), relation.file, _plain(node))
    if text or ours.keys() != theirs.keys() or len(inputs_of(origin)) != len(inputs_of(node)):
        return f"{kind(node)}: {text or 'it has other bodies or operands'}"
    read = [equal(relation, w, v) for w, v in zip(inputs_of(origin), inputs_of(node), strict=True)]
    bad = next((item for item in read if not isinstance(item, bool)), None)
    if bad is not None:
        return bad
    assumed = any(item is True for item in read)
    gauges: list[list[Claim]] = []
    found: Finding = ""
    for name in theirs:  # all of them: what samples have to show of one depends on it alone
        inner = _inside(relation, (origin, ours[name]), (node, theirs[name]))
        if inner is None:
            return f"{kind(node)}: what its body reads has no known size"
        reason = go(inner)
        if len(inner.source.graph.outputs) != len(inner.file.graph.outputs):
            return f"{kind(node)}: its body returns another number of values"
        pairs = zip(inner.source.graph.outputs, inner.file.graph.outputs, strict=True)
        known = [claim for w, v in pairs if (claim := returned(inner, w, v)) is not None]
        where = f"in {name} of {kind(node)}"
        if isinstance(reason, str) and (reason or len(known) < len(inner.file.graph.outputs)):
            found = found or f"{where}: {reason or 'its results are not known'}"
        elif isinstance(reason, Wrong):
            found = found or replace(reason.of(where), node=reason.node)
        gauges.append(known)
        assumed |= any(claim.assumed for claim in known)
    if found:
        return found
    if kind(node) != "If":
        same = all(claim.is_identity for claim in gauges[0])
        return same_results(node, origin, assumed=assumed) if same else f"{kind(node)}: its state is scaled or shifted"
    claims: list[tuple[ir.Value, Claim]] = []
    for w, v, *each in zip(origin.outputs, node.outputs, *gauges, strict=True):
        if any(not np.array_equal(a, b) for one in each[1:] for a, b in zip(_pair(one), _pair(each[0]), strict=True)):
            return "If: its branches are scaled or shifted differently"
        guard = smaller_guard(*(claim.guard for claim in each))
        lost = reduce(np.maximum, (one.lost for one in each))
        claims.append((w, Claim(v, each[0].scale, each[0].shift, assumed, guard=guard, lost=lost)))
    return Proof("its bodies compute the same", tuple(claims), (node,))


def _pair(claim: Claim) -> tuple[Floats, Floats]:
    return claim.scale, claim.shift


def returned(inner: Relation, w: ir.Value, v: ir.Value) -> Claim | None:
    """Return what a result of a body is of the other body's; None where it is not known."""
    found = equal(inner, w, v)
    if isinstance(found, bool):
        return Claim(v, np.ones(()), np.zeros(()), found)
    return inner.by(w, v)


def _inside(relation: Relation, ours: tuple[ir.Node, ir.Graph], theirs: tuple[ir.Node, ir.Graph]) -> Relation | None:
    """Return what is known inside two bodies before their operators are looked at."""
    sides, bodies = [], []
    for side, (node, graph) in ((relation.source, ours), (relation.file, theirs)):
        body = opened(graph, side.imports, side.type_of)
        given = [side.given(node, body, run) for run in side.runs]
        if not given or any(one is None for one in given):
            return None
        bodies.append(body)
        sides.append(Side(body.model, [one for one in given if one is not None]))
        sides[-1].one_size = side.one_size
    inner = Relation(sides[0], sides[1], further=relation.further)
    one, nought = np.ones(()), np.zeros(())
    for w, v in zip(bodies[0].own, bodies[1].own, strict=False):
        inner.add(w, Claim(v, one, nought))
    for w, v, claim in _read_outside(relation, bodies[0].outside, bodies[1].outside):
        inner.add(w, Claim(v, claim.scale, claim.shift, claim.assumed, guard=claim.guard, lost=claim.lost))
    return inner


def _read_outside(
    relation: Relation, ours: Sequence[tuple[ir.Value, ir.Value]], theirs: Sequence[tuple[ir.Value, ir.Value]]
) -> Iterator[tuple[ir.Value, ir.Value, Claim]]:
    for v, inner in theirs:
        for w, origin in ours:
            claim = relation.by(w, v)
            if claim is not None:
                yield origin, inner, claim


def _plain(node: ir.Node) -> ir.Node:
    """Return an operator without its bodies, to compare its other attributes."""
    kept = [a for a in node.attributes.values() if a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)]
    return with_attributes(node, kept)
