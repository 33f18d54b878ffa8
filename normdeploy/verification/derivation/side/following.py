"""Following sizes through a graph, at one assignment of them after another: floats are sizes alone.

What follows from sizes is computed. What an operator reads, and constants of it, are looked up once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Shape
from normdeploy.graph import FLOATS
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.verification.derivation.side.body_graphs import bodies_of
from normdeploy.verification.derivation.side.narrowing import as_stored
from normdeploy.verification.derivation.side.operands import inputs_of, is_sequence, kind
from normdeploy.verification.derivation.side.result_sizes import SMALL, Sizes

if TYPE_CHECKING:
    from normdeploy.verification.derivation.side.checked_side import Side


@dataclass(frozen=True)
class _Step:
    """An operator that is followed. Args: whole: its results follow from sizes. reads: None for absent operands."""

    node: ir.Node
    reads: tuple[ir.Value | None, ...]
    whole: bool
    has_bodies: bool
    reads_a_type: bool


class Following:
    """How sizes go through a graph.

    Args:
        side: the graph. sizes: what its operators return. constants, sized: what is the same whatever is fed, and what
            follows from the sizes of inputs alone.
        with_bodies: returns results of If, Loop or Scan as sizes, from what is known.
    """

    def __init__(
        self,
        side: Side,
        sizes: Sizes,
        constants: Set[ir.Value],
        sized: Set[ir.Value],
        with_bodies: Callable[[ir.Node, Mapping[ir.Value, Tensor]], list[Tensor]],
    ) -> None:
        self._side, self._sizes, self._constants, self._with_bodies = side, sizes, constants, with_bodies
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._held: dict[tuple[ir.Value, bool], Tensor] = {}
        self._steps = [
            _Step(
                node,
                tuple(inputs_of(node)),
                not sized.isdisjoint(node.outputs),
                bool(bodies_of(node)),
                kind(node) == "CastLike",
            )
            for node in side.nodes
            if node.op_type != "Constant" and not all(value in constants for value in node.outputs)
        ]

    def at(self, shapes: Mapping[str, Shape | Tensor]) -> dict[ir.Value, Tensor]:
        """Return each value at one assignment, as far as it can be followed.

        Args:
            shapes: of each input (or the input itself, as sizes), by name.
        """
        known: dict[ir.Value, Tensor] = {}
        for value in self._side.graph.inputs:
            held = value.const_value  # the number that is taken where none is fed
            fixed = None if held is None else tuple(int(n) for n in held.shape.numpy())
            shape = shapes.get(str(value.name), fixed)
            if shape is None or value.dtype is None:
                return {}
            known[value] = shape if isinstance(shape, Tensor) else _blank(shape, value.dtype)
        for step in self._steps:
            if step.has_bodies:
                found = self._with_bodies(step.node, known)
            else:
                operands = self._operands(step, known)
                found = [] if operands is None else self._sizes.of(step.node, operands)
            known.update(zip(step.node.outputs, found, strict=False))
        return known

    def _operands(self, step: _Step, known: Mapping[ir.Value, Tensor]) -> list[Tensor | None] | None:
        """Return what an operator reads; None where some of it is not known."""
        operands: list[Tensor | None] = []
        for read in step.reads:
            operands.append(None if read is None else self._operand(read, known, whole=step.whole))
            if read is not None and operands[-1] is None:
                return None
        if step.whole and step.reads_a_type and operands[1] is not None:
            operands[1] = torch.zeros((), dtype=operands[1].dtype)  # its type alone is read
        return as_stored(step.node, operands, self._side.type_of)

    def _operand(self, value: ir.Value, known: Mapping[ir.Value, Tensor], *, whole: bool) -> Tensor | None:
        found = known.get(value)
        if found is None:
            found = self._held.get((value, whole))
        if found is not None:
            return found
        if not whole and self._side.type_of(value) in FLOATS and not is_sequence(value):
            shape = self._shape_of_constant(value)
            if shape is not None and math.prod(shape) > SMALL:  # no more of it decides a size
                found = self._held[value, whole] = torch.empty(shape, dtype=torch.float64, device="meta")
                return found
        array = self._side.constant(value)
        if array is None:
            return None
        found = as_operand(array)
        if found.numel() <= SMALL:
            self._held[value, whole] = found
        return found

    def _shape_of_constant(self, value: ir.Value) -> Shape | None:
        """Return the shape of a constant of floats, stored or computed, without its numbers; None where that fails."""
        tensor = self._side.tensor(value)
        if tensor is not None:
            return tuple(int(n) for n in tensor.shape.numpy())
        if value not in self._shapes:
            node, found = value.producer(), list[Tensor]()
            if node is not None and value in self._constants:
                read = [None if operand is None else self._operand(operand, {}, whole=False) for operand in node.inputs]
                if all(a is None or b is not None for a, b in zip(node.inputs, read, strict=True)):
                    found = self._sizes.of(node, as_stored(node, read, self._side.type_of))
            place = value.index() or 0
            self._shapes[value] = tuple(found[place].shape) if place < len(found) else None
        return self._shapes[value]


def with_lengths(graph: ir.Graph, shapes: Mapping[str, Shape | Tensor]) -> Iterator[Mapping[str, Shape | Tensor]]:
    """Yield an assignment with its vectors of integers holding each of its sizes, the largest first.

    They may be lengths, of which 0 makes masks that fit nothing else.

    Args:
        graph: whose inputs are fed. shapes: of each input, by name.
    """
    sizes = {n for shape in shapes.values() if not isinstance(shape, Tensor) for n in shape}
    integers = {str(v.name) for v in graph.inputs if v.dtype is not None and v.dtype.is_integer()}
    vectors = {
        name: shape
        for name, shape in shapes.items()
        if name in integers and not isinstance(shape, Tensor) and len(shape) < 2
    }
    for size in sorted(sizes, reverse=True) if vectors else ():
        yield {**shapes, **{name: torch.full(shape, size, dtype=torch.int64) for name, shape in vectors.items()}}


def _blank(shape: Shape, dtype: ir.DataType) -> Tensor:
    if dtype in FLOATS:
        return torch.empty(shape, dtype=torch.float64, device="meta")
    return torch.zeros(shape, dtype=torch.bool if dtype == ir.DataType.BOOL else torch.int64)
