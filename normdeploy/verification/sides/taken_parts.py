"""Parts of a graph that run on some inputs alone: the branches of an If, and what follows a Loop's last turn.

A branch that no sample takes shows nothing of itself, and neither does the most turns that a Loop may take where its
condition ends it before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir
from torch import Tensor

from normdeploy.graph import constant64
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import Returned, returned

BRANCHES = {1: "then_branch", 0: "else_branch"}
"""The attribute that holds a branch, by the condition that takes it."""

LIMIT = 0
"""What a Loop has to end by: the most turns that it may take."""

_NEVER = 2**31
"""So many turns are no limit."""


def own_parts(
    nodes: Iterable[ir.Node], others: Iterable[ir.Node], known: Collection[Returned]
) -> dict[str, tuple[int, ...]]:
    """Return the branches, and the limits of turns, that samples have to reach, by the name of the operator's result.

    Args:
        nodes: of one graph. others: the other graph's, which may have the same limits.
        known: bodies that were confirmed; where all of an If's are, it is the choice that samples have to show.
    """
    limits = {turns_of(node) for node in others if is_standard(node, "Loop")}
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        name = str(node.outputs[0].name)
        if is_standard(node, "If") and constant64(node.inputs[0]) is None:
            bodies = {taken: returned(node.attributes[branch].as_graph()) for taken, branch in BRANCHES.items()}
            found[name] = tuple(taken for taken, body in bodies.items() if body not in known) or tuple(bodies)
        elif is_standard(node, "Loop"):
            turns = turns_of(node)
            found.update({name: (LIMIT,)} if turns is not None and turns < _NEVER and turns not in limits else {})
    return found


def turns_of(node: ir.Node) -> int | None:
    """Return the most turns that a Loop may take; None where that is no constant."""
    limit = constant64(node.inputs[0]) if node.inputs else None
    return None if limit is None or limit.size != 1 else int(limit.item())


def taken_parts(node: ir.Node, held: Callable[[ir.Value | None], Tensor | None]) -> set[int]:
    """Return which of them one run of an operator reached.

    Args:
        held: the last tensor that a value was, in bodies too.
    """
    if is_standard(node, "If"):
        condition = held(node.inputs[0])
        return set() if condition is None else {int(bool(condition))}
    body = node.attributes["body"].as_graph()
    turn, goes_on, turns = held(body.inputs[0]), held(body.outputs[0]), turns_of(node)
    ended = turn is not None and turns is not None and int(turn) + 1 >= turns
    return {LIMIT} if ended and (goes_on is None or bool(goes_on)) else set()
