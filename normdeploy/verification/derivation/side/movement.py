"""Movement of elements, run on whatever stands for them, and told apart by all that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import evaluate_node
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.result_sizes import said_of

MOVES = frozenset({
    "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Gather", "GatherElements",
    "GatherND", "Split", "SplitToSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceInsert",
    "SequenceErase", "ConcatFromSequence", "Concat", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    "ReverseSequence", "Compress",
})  # fmt: skip
"""Operators each of whose results is one of the elements that they read, whatever these are."""

DEPTH = 24
"""How many of them in a row are looked at."""

_TOLD = 4096
"""Numbers up to which an operand that is not moved (a shape, indices) is told apart by its numbers."""

Leaf = Callable[[ir.Value], Tensor | None]


class Lost(Exception):
    """Elements cannot be followed."""


def moved_by(node: ir.Node) -> list[ir.Value]:
    """Return the operands whose elements an operator moves."""
    inputs = [value for value in inputs_of(node) if value is not None]
    count = {"Concat": len(inputs), "SequenceConstruct": len(inputs), "SequenceInsert": 2}.get(kind(node), 1)
    return inputs[:count]


def first_moved(value: ir.Value, known: Container[ir.Value]) -> list[ir.Value]:
    """Return the known value whose elements one operator after the other moved into a value; [] if there is none.

    What lies between may be nobody's: keys that are flattened, transposed and put back in place.
    """
    for _ in range(DEPTH):
        node = value.producer()
        moved = moved_by(node) if node is not None and kind(node) in MOVES else []
        if len(moved) != 1:
            break
        value = moved[0]
        if value in known:
            return [value]
    return []


def run_moves(side: Side, value: ir.Value, leaf: Leaf, k: int, *, marked: bool = False) -> Tensor:
    """Run movement on what leaves hold; constants as they are, or marked by -1."""
    found = leaf(value)
    if found is not None:
        return found
    constant = side.constant(value)
    if constant is not None:
        array = torch.from_numpy(np.array(constant, np.float64 if constant.dtype.kind == "f" else np.int64))
        return torch.full_like(array, -1.0) if marked else array
    node = value.producer()
    if node is None or kind(node) not in MOVES:
        raise Lost(f"{value.name!r} is not known")
    moved = set(moved_by(node))
    operands: list[Tensor | None] = []
    for operand in inputs_of(node):
        if operand is None:
            operands.append(None)
        elif operand in moved:
            operands.append(run_moves(side, operand, leaf, k, marked=marked))
        else:
            numbers = side.numbers(operand)
            if numbers is None:
                raise Lost(f"{operand.name!r} depends on what is fed")
            operands.append(torch.from_numpy(np.array(numbers[k])))
    return evaluate_node(node, operands, opset_imports=side.imports)[value.index() or 0]


def way_of(side: Side, value: ir.Value, place: Callable[[ir.Value], int | None], k: int) -> tuple[Hashable, ...] | None:
    """Return all that decides where elements land at one assignment of sizes; None where that is too much to compare.

    Args:
        side: the graph. value: what they land in. place: the number of a value that they come from; None of others.
    """
    leaf = place(value)
    if leaf is not None:
        return "leaf", leaf
    constant, node = side.constant(value), value.producer()
    if constant is not None:
        return "constant", constant.shape
    said = None if node is None or kind(node) not in MOVES else said_of(node, side.imports)
    if node is None or said is None:
        return None
    moved, read = set(moved_by(node)), list[Hashable]()
    for operand in inputs_of(node):
        if operand is None:
            read.append(None)
        elif operand in moved:
            read.append(way_of(side, operand, place, k))
        else:
            numbers = side.numbers(operand)
            small = numbers is not None and numbers[k].size <= _TOLD
            read.append((numbers[k].shape, numbers[k].tobytes()) if numbers is not None and small else None)
        if operand is not None and read[-1] is None:
            return None
    return (said, value.index(), *read)
