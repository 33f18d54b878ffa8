"""Movement of elements, run on whatever stands for them, and told apart by all that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from math import prod

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Shape
from normdeploy.graph import evaluate_node
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.kept_operands import kept_operand
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.result_sizes import said_of

MOVES = frozenset({
    "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Gather", "GatherElements",
    "GatherND", "Split", "SplitToSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceInsert",
    "SequenceErase", "ConcatFromSequence", "Concat", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    "ReverseSequence", "Compress",
})  # fmt: skip
"""Operators each of whose results is one of the elements that they read, whatever these are."""

_WRITES = frozenset({"ScatterElements", "ScatterND"})
"""Operators that do so where nothing is added or multiplied, and no place is written twice."""

_FILLS = frozenset({"ConstantOfShape"})
"""Operators that hold one constant, as often as sizes say."""

DEPTH = 24
"""How many of them in a row are looked at."""

_TOLD = 4096
"""Numbers up to which an operand that is not moved (a shape, indices) is told apart by its numbers."""

Leaf = Callable[[ir.Value], Tensor | None]


class Lost(Exception):
    """Elements cannot be followed."""


def moves(node: ir.Node | None) -> bool:
    """Tell whether each result of an operator is one of the elements that it reads, whatever these are."""
    if node is None:
        return False
    if kind(node) in _WRITES:
        return node.attributes.get_string("reduction", "none") == "none"
    return kind(node) in MOVES or kind(node) == "Pad" or kind(node) in _FILLS


def writes(node: ir.Node) -> bool:
    """Tell whether an operator puts elements in the places of others, and does nothing else to them."""
    return kind(node) in _WRITES and moves(node)


def moved_by(node: ir.Node, side: Side | None = None) -> list[ir.Value]:
    """Return the operands whose elements an operator moves.

    Args:
        node: the operator. side: its graph, where it is asked whether all that was there is written over.
    """
    if side is not None and kind(node) in _WRITES and (whole := kept_operand(side, node)) is not None:
        return [whole]
    if kind(node) in _WRITES or kind(node) == "Pad":
        return [value for value in inputs_of(node)[:3:2] if value is not None]
    if kind(node) in _FILLS:
        return []
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


def written_over(node: ir.Node, given: Sequence[ir.Value]) -> ir.Value | None:
    """Return the value that an operator writes over in part, of those that it moves."""
    return given[0] if kind(node) in _WRITES and len(given) > 1 else None


def run_moves(
    side: Side, value: ir.Value, leaf: Leaf, k: int, *, marked: bool = False, unknown: float | None = None
) -> Tensor:
    """Run movement on what leaves hold.

    Args:
        side, value: the graph, and what is asked for. leaf: returns what a value holds. k: the assignment of sizes.
        marked: constants are -1, and not what they are.
        unknown: what stands for each element of what is not known, which may be written over; None refuses it.

    Raises:
        Lost: something is not known.
    """
    found = leaf(value)
    if found is not None:
        return found
    constant = side.constant(value)
    if constant is not None:
        array = torch.from_numpy(np.array(constant, np.float64 if constant.dtype.kind == "f" else np.int64))
        return torch.full_like(array, -1.0) if marked else array
    node = value.producer()
    if node is None or not moves(node):
        if unknown is None or len(side.shapes(value)) <= k:
            raise Lost(f"{value.name!r} is not known")
        return torch.full(side.shapes(value)[k], unknown, dtype=torch.float64)
    given = moved_by(node, side)
    if kind(node) in _WRITES and len(given) == 1:
        return run_moves(side, given[0], leaf, k, marked=marked, unknown=unknown)
    moved, operands = set(given), list[Tensor | None]()
    for operand in inputs_of(node):
        if operand is None:
            operands.append(None)
        elif operand in moved:
            operands.append(run_moves(side, operand, leaf, k, marked=marked, unknown=unknown))
        else:
            numbers = side.numbers(operand)
            if numbers is None:
                raise Lost(f"{operand.name!r} depends on what is fed")
            operands.append(as_operand(numbers[k]))
    if kind(node) in _WRITES:
        into, places = operands[:2]
        assert into is not None
        assert places is not None
        if not writes_once(node, tuple(into.shape), places):
            raise Lost(f"{kind(node)} writes some places twice")
    if marked and kind(node) == "Pad" and operands[0] is not None and (len(operands) < 3 or operands[2] is None):
        operands = [*operands[:2], torch.tensor(-1.0, dtype=operands[0].dtype), *operands[3:]]
    found = evaluate_node(node, operands, opset_imports=side.imports)[value.index() or 0]
    return torch.full(found.shape, -1.0, dtype=torch.float64) if marked and kind(node) in _FILLS else found


def writes_once(node: ir.Node, sizes: Shape, places: Tensor) -> bool:
    """Tell whether no place of a value of these sizes is written twice: which of two is the last is nowhere said."""
    if kind(node) == "ScatterND":
        depth = places.shape[-1]
        named, sizes = places.reshape(-1, depth), sizes[:depth]
    else:
        axis = axis_of(node.attributes.get_int("axis", 0), len(sizes))
        named = torch.stack(torch.meshgrid(*map(torch.arange, places.shape), indexing="ij"), -1).reshape(-1, len(sizes))
        named[:, axis] = places.reshape(-1)
    strides = torch.tensor([prod(sizes[axis + 1 :]) for axis in range(len(sizes))])
    return len(torch.unique((named % torch.tensor(sizes) * strides).sum(1))) == len(named)


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
    said = None if node is None or not moves(node) else said_of(node, side.imports)
    if node is None or said is None:
        return None
    given = moved_by(node, side)
    if kind(node) in _WRITES and len(given) == 1:
        return way_of(side, given[0], place, k)
    moved, read = set(given), list[Hashable]()
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
