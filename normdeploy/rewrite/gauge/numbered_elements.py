"""Which element of what it reads each element is that an operator writes: it is run on 0, 1, 2, ...

That is done once for all that move alike: layers repeat each other. An operator that only moves elements is checked by
it, for every x at once: f(s x + t) = f(s) f(x) + f(t).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array, Floats
from normdeploy.errors import RewriteError
from normdeploy.graph import FLOATS, constant64, constant_tensor, evaluate_node, module_path
from normdeploy.graph.edit import is_read
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.gauge.equations.expression_rows import Ints
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.rewrite_context import TOLERANCE

Moved = dict[Hashable, list[Ints]]
"""What was found, by all that decides it."""


def moved(
    node: ir.Node, shapes: Mapping[int, tuple[int, ...]], others: Mapping[int, Tensor], known: Moved
) -> list[Ints]:
    """Return the numbers of the elements that an operator writes.

    Args:
        node: the operator.
        shapes: of the operands whose elements are numbered, one operand behind the other, by input.
        others: further inputs that are no constants, by input.
        known: what was found before; gets what is found now.

    Raises:
        GraphError: it cannot be evaluated.
    """
    held: dict[int, Array | None] = {}
    decides: list[Hashable] = [node.op_type, len(node.outputs)]
    decides += [(name, str(attribute.value)) for name, attribute in sorted(node.attributes.items())]
    for index, value in enumerate(node.inputs):
        if index in shapes:
            decides.append(shapes[index])
            continue
        array = held[index] = others[index].numpy() if index in others else constant64(value)
        decides.append(None if array is None else (array.shape, array.tobytes()))
    key = tuple(decides)
    if key not in known:
        inputs, start = list[Tensor | None](), 0
        for index in range(len(node.inputs)):
            if index in shapes:
                stop = start + math.prod(shapes[index])
                inputs.append(torch.arange(start, stop, dtype=torch.float64).reshape(shapes[index]))
                start = stop
            else:
                array = held[index]
                inputs.append(None if array is None else torch.from_numpy(np.array(array)))
        known[key] = [tensor.numpy().astype(np.int64) for tensor in evaluate_node(node, inputs)]
    return known[key]


def only_moves(edit: Edit) -> bool:
    """Tell whether an operator stays as it is, and moves elements of computed values alone."""
    if edit.changes or not has(edit.node, Trait.MOVES | Trait.JOINS):
        return False
    constants = map(constant_tensor, edit.node.inputs)
    return not any(tensor is not None and tensor.dtype in FLOATS for tensor in constants)


def require_moved(edit: Edit, drawn: Mapping[ir.Value, Tensor]) -> None:
    """Require that the gauges of what an operator writes are those of the elements that it writes.

    Args:
        edit: of an operator that stays as it is.
        drawn: what it reads, of sizes that show all that the gauges tell apart.

    Raises:
        RewriteError: they are not.
        GraphError: it cannot be evaluated.
        ValueError: a gauge has more cells than what was drawn.
    """
    node, at = edit.node, edit.at
    read = {
        index: (value, drawn[value]) for index, value in enumerate(node.inputs) if value is not None and value in drawn
    }
    shapes = {index: tuple(tensor.shape) for index, (_, tensor) in read.items() if tensor.is_floating_point()}
    others = {index: tensor for index, (_, tensor) in read.items() if index not in shapes}
    sources = [_spread(at, read[index][0], shape) for index, shape in shapes.items()]
    sides = [_Side([pair[side] for pair in sources]) for side in (0, 1)]
    for value, taken in zip(node.outputs, moved(node, shapes, others, at.ties.moved), strict=False):
        if not is_read(value):  # it need not agree with anything
            continue
        for own, side in zip(_spread(at, value, taken.shape), sides, strict=True):
            if side.is_all(own):
                continue
            expected = side.of_each()[taken]
            with np.errstate(invalid="ignore"):
                apart = np.abs(own - expected)
            if not ((own == expected) | (apart <= TOLERANCE * np.abs(expected))).all():
                raise RewriteError(
                    f"gauge of {node.op_type}",
                    module_path(node),
                    f"{value.name} differs by {float(apart.max()):.3g}; expected the gauges of the elements it holds",
                )


class _Side:
    """The scales, or the shifts, of all that an operator reads: often one number, which needs no table of elements."""

    def __init__(self, parts: Sequence[Floats]) -> None:
        self._parts = parts
        told = [_told(part) for part in parts]
        one = next((part.flat[0] for part in told if part.size), None)
        self._one = one if all((part == one).all() for part in told) else None

    def is_all(self, own: Floats) -> bool:
        """Tell whether there is but one number, and it is all that a result has."""
        return self._one is not None and bool((_told(own) == self._one).all())

    def of_each(self) -> Floats:
        """Return the number of each element that is read, one operand behind the other."""
        return np.concatenate([part.reshape(-1) for part in self._parts])


def _told(repeated: Floats) -> Floats:
    """Return an array without what it repeats."""
    found: Floats = repeated[tuple(slice(None) if step else slice(1) for step in repeated.strides)]
    return found


def _spread(at: Solution, value: ir.Value, shape: Sequence[int]) -> tuple[Floats, Floats]:
    """Return s and t of each element."""
    gauge = at.ties.of.get(value)
    if gauge is None:
        return np.broadcast_to(np.ones(()), shape), np.broadcast_to(np.zeros(()), shape)
    scale, shift = at.scale(gauge), at.shift(gauge)
    axis = at.ties.repeated.get(value)
    if axis is not None:
        again = np.arange(shape[axis]) % gauge.cells[axis]
        scale, shift = scale.take(again, axis), shift.take(again, axis)
    return np.broadcast_to(scale, shape), np.broadcast_to(shift, shape)
