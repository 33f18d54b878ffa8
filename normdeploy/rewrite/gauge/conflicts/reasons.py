"""Why a map has to stay, in a sentence, from the proof that it does (:mod:`.contradiction`).

A proof is a cycle of ties (what lies in front of the map and what lies behind it meet again, with another factor), or a
chain from one restriction to another; the sentence names the restrictions, the chain every operator between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.conflicts.chain import Limit, between, chain_of
from normdeploy.rewrite.gauge.conflicts.contradiction import proof_of
from normdeploy.rewrite.gauge.conflicts.in_front import cancelled, given_by, given_there, narrow
from normdeploy.rewrite.gauge.equations.expression_rows import out_of_range
from normdeploy.rewrite.gauge.equations.system import Conflict
from normdeploy.rewrite.gauge.ties import Tie, Ties

_SHOWN = 3
"""Restrictions, and operators between them, that the sentence names."""


@dataclass(frozen=True)
class Reason:
    """Why a map stays.

    Args:
        text: a sentence a user can act on.
        nodes: those that restrict. stating: those that state what contradicts; none where nothing does.
        about: of what the contradiction is: whether of scales, and their unknowns.
        told: finds the chain.
    """

    text: str
    nodes: tuple[ir.Node, ...] = ()
    stating: frozenset[ir.Node] = frozenset()
    about: tuple[bool, frozenset[int]] = (False, frozenset())
    told: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def chain(self) -> tuple[str, ...]:
        """Every operator of the contradiction in the order of the graph, with what it asks."""
        return self.told()


def reason_of_conflict(node: ir.Node, conflict: Conflict, ties: Ties) -> Reason:
    """Return why a map stays whose equation contradicts what holds."""
    scale = conflict.system.multiplicative
    what = "scale" if scale else "shift"
    if scale and out_of_range(np.array(conflict.found)).any():
        return Reason("its scale times those of the maps beside it is more, or less, than float64 holds")
    whole = proof_of(conflict)
    proof = [tie for tie in whole.ties if tie.node is not node]
    order = ties.order
    place = order[node]
    of_signs = conflict.because is not None or (
        conflict.loose is not None and conflict.found < 0
    )  # an even power is not
    signed = ties.above_zero if of_signs else {}
    limits = list(dict.fromkeys(_limits(node, proof, ties, signed, scale=scale)))
    limits += given_there(node, conflict, ties)
    told = dict.fromkeys((limit.node is None or order.get(limit.node, place) > place, limit.text) for limit in limits)
    behind = [text for after, text in told if after]
    front = [text for after, text in told if not after]
    path = [tie.node for tie in proof if tie.node is not None and not tie.clause]
    beside: list[Limit] = []
    if not front:
        beside = [limit for other in path if order[other] < place for limit in cancelled(other, ties)]
        beside = beside or narrow(node, ties, scale=scale)
        front = list(dict.fromkeys(limit.text for limit in beside))
    cause = f"its {what} cannot leave"
    if of_signs:
        channel, count = _negative(node)
        cause = f"channel {channel} ({count} in all) is scaled by a negative number" if count else cause
    parts = []
    if behind:
        parts.append("behind it " + "; ".join(behind[:_SHOWN]))
    if front:
        parts.append("in front of it " + "; ".join(front[:_SHOWN]))
    meet = [other for other in path if order.get(other, place) > place] or ([] if parts else path)
    if parts and meet and not behind:
        parts.append(f"it meets what is behind it in {describe(meet[-1])} by another {what}")
    elif not parts:
        name = describe(meet[-1]) if meet else "a later operator"
        parts.append(f"what is in front of it and what is behind it meet in {name}, and not by the same {what}")
    stating = frozenset(tie.node for tie in proof if tie.node is not None)
    passing = between(node, stating, whole.unknowns, ties, scale=scale)
    handing = (*passing, *(other for limit in limits for other in limit.way))
    summing = {other for other in handing if has(other, Trait.BROADCASTS) and not is_affine(other)}  # in no equation
    named = {limit.node for limit in limits if limit.text in (*behind[:_SHOWN], *front[:_SHOWN])}
    named |= set() if behind else set(meet[-1:])
    through = [
        describe(other) for other in sorted({*path, *summing} - named, key=lambda other: order.get(other, place))
    ]
    way = ""
    if through and (behind or front):
        way = f" (tied by {', '.join(through[:_SHOWN])}{', ...' if len(through) > _SHOWN else ''})"
    asking = [tie.node for tie in proof if tie.node is not None and tie.clause]
    asking += [limit.node for limit in limits if limit.node is not None and not limit.given]
    chain = partial(chain_of, node, proof, [*limits, *beside], passing, ties)
    about = scale, whole.unknowns
    return Reason(f"{cause}: {', and '.join(parts)}{way}", tuple(dict.fromkeys(asking)), stating, about, chain)


def _negative(node: ir.Node) -> tuple[int, int]:
    found = np.flatnonzero(affine_map(node).scale.reshape(-1) < 0)
    return (int(found[0]), len(found)) if found.size else (0, 0)


def _limits(node: ir.Node, proof: list[Tie], ties: Ties, signed: Mapping[ir.Node, str], *, scale: bool) -> list[Limit]:
    """Return the restrictions in a proof; ``signed`` are those that say more than a mere tie of theirs."""
    found: list[Limit] = []
    for tie in proof:
        if tie.node is not None and (clause := tie.clause or signed.get(tie.node, "")):
            found.append(Limit(tie.node, f"{describe(tie.node)} {clause}"))
        elif tie.clause:
            found.append(Limit(None, f"{tie.subject} {tie.clause}"))
    tied = [tie.node for tie in proof if tie.node is not None and not tie.clause]
    for other in (node, *tied):
        for value in other.inputs:
            found += given_by(value, ties, scale=scale)
    return found
