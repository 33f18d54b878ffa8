"""Operators that move elements of integers in the file as they move what these stand for in the source."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.related.relation import Relation
from normdeploy.verification.derivation.side.attributes import difference
from normdeploy.verification.derivation.side.beyond import alike_beyond
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def same_move(relation: Relation, origin: ir.Node, node: ir.Node) -> bool:
    """Tell whether an operator of the file moves elements as one of the source does.

    MaxPool chooses among integers as it does among what rises with them; where it pads, it chooses no padding.
    """
    w, v = origin.outputs[0], node.outputs[0]
    shapes = relation.source.shapes(w)
    if not shapes or shapes != relation.file.shapes(v):
        return False
    if has(origin, Trait.KEEPS_ORDER) and has(node, Trait.KEEPS_ORDER):
        return has(origin, Trait.PERMUTES) and has(node, Trait.PERMUTES)
    moves = kind(node) == "MaxPool" or has(node, Trait.PERMUTES) or kind(node) in ("Slice", "Expand", "Tile")
    if kind(origin) != kind(node) or not moves or difference(relation.source, origin, relation.file, node):
        return False
    if any(output.uses() for output in (*origin.outputs[1:], *node.outputs[1:])):
        return False
    ours, theirs = inputs_of(origin), inputs_of(node)
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        want, have = relation.source.numbers(a), relation.file.numbers(b)
        if want is None or have is None or not all(map(np.array_equal, want, have)):
            return False
        if not alike_beyond(relation.source, a, relation.file, b):
            return False
    return True


def alike_moves(relation: Relation, moves: tuple[ir.Node, ...], value: ir.Value) -> tuple[ir.Node, ...] | None:
    """Return the operators of the file that do behind a value what some of the source do; None where it has none."""
    found: list[ir.Node] = []
    for origin in moves:
        behind = (usage.node for usage in value.uses() if usage.idx == 0)
        node = next((node for node in behind if same_move(relation, origin, node)), None)
        if node is None:
            return None
        found.append(node)
        value = node.outputs[0]
    return tuple(found)
