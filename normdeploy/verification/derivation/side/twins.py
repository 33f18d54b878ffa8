"""Values that a graph computes twice: the same operator on the same. Other tools keep one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.reduced_axes import reduced
from normdeploy.verification.derivation.side.result_sizes import said_of
from normdeploy.verification.derivation.side.value_facts import ranks_in


def twins_of(side: Side) -> dict[ir.Value, tuple[ir.Value, ...]]:
    """Return each value that is computed twice with the others that are the same number by number.

    Nothing is returned where all of them are constants, or follow from sizes: these are compared number by number
    anyway, whichever of them an operator reads.
    """
    if side.twins is None:
        side.twins = _computed_twice(side)
    return side.twins


def _computed_twice(side: Side) -> dict[ir.Value, tuple[ir.Value, ...]]:
    first: dict[Hashable, ir.Node] = {}
    stands: dict[ir.Value, ir.Value] = {}  # for a value that was met before: the first like it
    found: dict[ir.Value, list[ir.Value]] = {}
    for node in side.nodes:
        draws = has(node, Trait.RANDOM) or node.op_type == "Dropout"
        said = None if draws else said_of(node, side.imports)
        if said is None:
            continue
        like = first.setdefault((said, _operands(side, stands, node)), node)
        if like is node:
            continue
        for value, one in zip(node.outputs, like.outputs, strict=False):
            stands[value] = one
            found.setdefault(one, [one]).append(value)
    if all(side.tensor(value) is not None or side.is_sized(value) for value in found):
        return {}
    return {value: tuple(v for v in alike if v is not value) for alike in found.values() for value in alike}


def _operands(side: Side, stands: dict[ir.Value, ir.Value], node: ir.Node) -> tuple[Hashable, ...]:
    """Return what tells a node's operands; axes of a reduction are one however they are written.

    torch counts some of them from the end, and those of a deviation not.
    """
    keys = [_key(side, stands, value) for value in node.inputs]
    rank = ranks_in(side)(node.inputs[0]) if len(keys) > 1 and has(node, Trait.REDUCES) and node.inputs[0] else None
    axes = None if rank is None else reduced(side, node, rank)
    return tuple(keys) if axes is None else (keys[0], axes)


def _key(side: Side, stands: dict[ir.Value, ir.Value], value: ir.Value | None) -> Hashable:
    tensor = side.tensor(value)
    if tensor is None:
        return value and stands.get(value, value)
    return tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest()
