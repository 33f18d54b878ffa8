"""The operators that stand for what is written over part of an axis (:mod:`.written_parts`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Ints
from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import free_name, put_constant, standing_for, take_out_unread, take_place
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.repeated_numbers import number_of

Cuts = dict[ir.Value, tuple[ir.Value, int, int]]
"""Of each value that was cut out of another one: which, along which axis, and from where."""


@dataclass(frozen=True)
class Writing:
    """Rows of an axis that are written.

    Args:
        node: the operator. axis: of what it reads, once it is turned back. rows: which, in the order of the updates.
        turn: how the axes were turned so that the operator can write; None where they were not.
    """

    node: ir.Node
    axis: int
    rows: Ints
    turn: tuple[int, ...] | None

    @property
    def back(self) -> tuple[int, ...] | None:
        """How they are turned back."""
        return None if self.turn is None else inverse(self.turn)


def inverse(turn: Sequence[int]) -> tuple[int, ...]:
    """Return the order that undoes an order of axes."""
    return tuple(int(at) for at in np.argsort(turn))


class Joined:
    """Makes the operators that stand for a writing, in front of it.

    Args:
        graph: where. writing: what is written. cuts: what was cut out of others so far; gets more.
    """

    def __init__(self, graph: ir.Graph, writing: Writing, cuts: Cuts) -> None:
        self._graph, self._writing, self._cuts = graph, writing, cuts

    def result(self) -> ir.Value:
        """Return what stands in the place of the result, its axes turned back; it has no name yet, if it is new."""
        axis, rows = self._writing.axis, self._writing.rows
        data, updates = (self._back(self._writing.node.inputs[index]) for index in (0, 2))
        assert data.shape is not None
        size = data.shape[axis]
        assert isinstance(size, int)
        first, last = int(rows[0]), int(rows[-1])
        if np.array_equal(rows, np.arange(first, last + 1)):
            parts = [*self._cut(data, 0, first), updates, *self._cut(data, last + 1, size)]
            return self._made("Concat", parts, data, size, axis=axis)
        order = np.arange(size)
        order[rows] = size + np.arange(len(rows))
        both = self._named(self._made("Concat", [data, updates], data, size + len(rows), axis=axis), "both")
        places = put_constant(self._graph, order, f"{self._writing.node.outputs[0].name}_rows")
        return self._made("Gather", [both, places], data, size, axis=axis)

    def transposed(self, value: ir.Value, turn: tuple[int, ...] | None) -> ir.Value:
        """Return a value whose axes are turned."""
        assert turn is not None
        assert value.shape is not None
        made = standing_for(self._writing.node, "Transpose", [value], [ir.AttrInt64s("perm", turn)], like=value)
        made.outputs[0].shape = ir.Shape([value.shape[at] for at in turn])
        self._graph.insert_before(self._writing.node, made)
        return made.outputs[0]

    def _back(self, value: ir.Value | None) -> ir.Value:
        """Return a value whose axes were turned as it was before."""
        turn, back = self._writing.turn, self._writing.back
        assert value is not None
        if turn is None or back is None:
            return value
        source = value.producer()
        turned = source is not None and is_standard(source, "Transpose")
        if source is not None and turned and tuple(source.attributes.get_ints("perm", ())) == turn:
            return required(source, 0)
        tensor = constant_tensor(value)
        if tensor is not None and value.dtype is not None:
            array = np.ascontiguousarray(np.transpose(tensor.numpy(), back))
            return put_constant(self._graph, array, f"{value.name}_turned", value.dtype)
        return self._named(self.transposed(value, back), "turned")

    def _cut(self, value: ir.Value, start: int, stop: int) -> list[ir.Value]:
        """Return the values that hold some rows of another one, one after the other."""
        axis, source = self._writing.axis, value.producer()
        assert value.shape is not None
        if start >= stop:
            return []
        if (start, stop) == (0, value.shape[axis]):
            return [value]
        whole, along, begin = self._cuts.get(value, (value, axis, 0))
        if whole is not value and along == axis:
            return self._cut(whole, start + begin, stop + begin)
        if source is not None and is_standard(source, "Concat") and _joins_along(source, axis):
            found, begin = list[ir.Value](), 0
            for part in source.inputs:
                assert part is not None
                assert part.shape is not None
                size = part.shape[axis]
                assert isinstance(size, int)
                found += self._cut(part, max(start - begin, 0), min(stop - begin, size))
                begin += size
            return found
        name = f"{self._writing.node.outputs[0].name}_left"
        ends = [put_constant(self._graph, [number], f"{name}_ends") for number in (start, stop, axis)]
        left = self._named(self._made("Slice", [value, *ends], value, stop - start), "left")
        self._cuts[left] = (value, axis, start)
        return [left]

    def _made(
        self, op_type: str, inputs: list[ir.Value], like: ir.Value, size: int, axis: int | None = None
    ) -> ir.Value:
        attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
        node = standing_for(self._writing.node, op_type, inputs, attributes, like=like)
        assert like.shape is not None
        dims = list(like.shape.dims)
        dims[self._writing.axis] = size
        node.outputs[0].shape = ir.Shape(dims)
        self._graph.insert_before(self._writing.node, node)
        return node.outputs[0]

    def _named(self, value: ir.Value, what: str) -> ir.Value:
        value.name = free_name(self._graph, f"{self._writing.node.outputs[0].name}_{what}")
        return value


def _joins_along(node: ir.Node, axis: int) -> bool:
    """Tell whether a Concat joins values of known sizes along an axis."""
    shape = node.outputs[0].shape
    if shape is None or axis_of(node.attributes.get_int("axis", 0), len(shape)) != axis:
        return False
    sizes = [None if value is None or value.shape is None else value.shape[axis] for value in node.inputs]
    return all(isinstance(size, int) for size in sizes)


def pad_instead(graph: ir.Graph, joined: ir.Value) -> None:
    """Pad what is joined with parts in front or behind that are one number everywhere."""
    node = joined.producer()
    if node is None or node.graph is not graph or not is_standard(node, "Concat") or joined.shape is None:
        return
    parts = [value for value in node.inputs if value is not None]
    known: dict[ir.Value, torch.Tensor | None] = {}
    numbers = [number_of(value, known) for value in parts]
    number = numbers[0] if numbers[0] is not None else numbers[-1]
    others = [at for at, found in enumerate(numbers) if found is None or found != number]
    if number is None or not others:
        return
    first, last, axis = others[0], others[-1], axis_of(node.attributes.get_int("axis", 0), len(joined.shape))
    widths = [_size(parts[:first], axis), _size(parts[last + 1 :], axis)]
    ends = np.zeros((2, len(joined.shape)), np.int64)
    ends[:, axis] = widths
    inner = parts[first]
    assert joined.dtype is not None
    if last > first:
        concat = standing_for(node, "Concat", parts[first : last + 1], [ir.AttrInt64("axis", axis)])
        dims = list(joined.shape.dims)
        dims[axis] = _size(parts[first : last + 1], axis)
        (inner,) = concat.outputs
        inner.name, inner.shape = free_name(graph, f"{joined.name}_inner"), ir.Shape(dims)
        graph.insert_before(node, concat)
    pads = put_constant(graph, ends.reshape(-1), f"{joined.name}_pads")
    around = put_constant(graph, number.numpy().reshape(()), f"{joined.name}_around", joined.dtype)
    padded = standing_for(node, "Pad", [inner, pads, around])
    graph.insert_before(node, padded)
    take_place(padded.outputs[0], joined)
    take_out_unread([joined])


def _size(parts: Sequence[ir.Value], axis: int) -> int:
    """Return how many rows some values of known sizes have."""
    sizes = [None if value.shape is None else value.shape[axis] for value in parts]
    return sum(size for size in sizes if isinstance(size, int))
