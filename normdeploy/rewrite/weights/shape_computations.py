"""Follow the dimensions that are known through shape computations: ``Shape -> Gather/Slice -> Concat -> Reshape``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.edit import put_constant
from normdeploy.graph.operator_inputs import optional
from normdeploy.rewrite.sizes import Size, size_of
from normdeploy.rewrite.weights.conditions import EXACT
from normdeploy.rewrite.weights.sizes_by_data import sized_by_data

_IntegerConstant = Callable[[ir.Value], Array | None]
_Dims = tuple[Size | None, ...]


def integer_constant(value: ir.Value) -> Array | None:
    """Return the integers of a constant; None of what is none."""
    return constant64(value) if value.dtype in EXACT and constant_tensor(value) is not None else None


def integer_operand(node: ir.Node, index: int) -> Array | None:
    """Return the integers of an operand; None where it is absent, or no constant of integers."""
    value = optional(node, index)
    return None if value is None else integer_constant(value)


class KnownShapes:
    """Integers of shape expressions, element by element: a number, which dimension it is, or None where it is neither.

    Held with their rank: 0 for a scalar, which is one element, and 1 for a vector.

    Attributes:
        told: whether sizes became known of what a Reshape writes.
    """

    def __init__(self) -> None:
        self.told = False
        self._known: dict[ir.Value, tuple[_Dims, int]] = {}

    def visit(self, node: ir.Node, constant: _IntegerConstant = integer_constant) -> Array | None:
        """Follow one node; return its result where every element of it is known.

        Args:
            node: a node whose operands were visited before.
            constant: returns an integer constant's value, or None.
        """
        rule = _RULES.get(node.op_type)
        if rule is None or not node.outputs:
            return None
        found = rule(self, node, constant)
        if found is None:
            return None
        dims, rank = self._known[node.outputs[0]] = found
        if not all(isinstance(dim, int) for dim in dims):
            return None
        array = np.array(dims, dtype=np.int64)
        return array.reshape(()) if rank == 0 else array

    def elements(self, value: ir.Value) -> _Dims | None:
        """Return the elements of a vector of integers; None where not even their number is known."""
        found = self._read(value, integer_constant)
        return None if found is None else found[0]

    def static_reshape(self, node: ir.Node) -> bool:
        """Give a Reshape whose target has exactly one dynamic element the constant target with -1 in its place.

        Exact wherever the original runs: the elements of the result must number those of the input, so the one unknown
        is what -1 means. Not where a known element is 0 (it would copy or make the unknown ambiguous), nor where one
        stands for a size that is fed as a number: -1 would take up what does not fit, and the original would not run.
        """
        if node.op_type != "Reshape" or len(node.inputs) < 2 or node.inputs[1] is None or node.graph is None:
            return False
        target = node.inputs[1]
        if target not in self._known:
            return False
        dims, _ = self._known[target]
        result = node.outputs[0].shape
        if result is not None and result.rank() == len(dims):
            # what stands for itself (-1) may be known from the result's shape
            known = [size if isinstance(size, int) else None for size in result]
            dims = tuple(known[axis] if dim == -1 else dim for axis, dim in enumerate(dims))
        numbers = [dim for dim in dims if isinstance(dim, int)]
        if len(numbers) != len(dims) - 1 or any(dim <= 0 for dim in numbers) or _may_not_fit(node.inputs[0], numbers):
            return False
        assert isinstance(node.graph, ir.Graph)
        self.told |= _tell(node, dims)
        name = f"{target.name}_static_{node.outputs[0].name}"
        node.replace_input_with(
            1, put_constant(node.graph, [dim if isinstance(dim, int) else -1 for dim in dims], name)
        )
        if "allowzero" in node.attributes:
            node.attributes.pop("allowzero")
        return True

    def _read(self, value: ir.Value | None, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        if value is None:
            return None
        if value in self._known:
            return self._known[value]
        array = constant(value)
        if array is None or array.ndim > 1 or array.dtype.kind not in "iu" or array.size > 64:
            return None
        return tuple(int(item) for item in array.reshape(-1)), array.ndim

    def _shape(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        del constant
        source = node.inputs[0]
        if source is None or source.shape is None:
            return None
        dims: _Dims = tuple(size_of(source, axis) for axis in range(len(source.shape)))
        start = node.attributes.get_int("start", 0)
        end = node.attributes.get_int("end", len(dims))
        return dims[_clamp(start, len(dims)) : _clamp(end, len(dims))], 1

    def _size(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        del constant
        source = node.inputs[0]
        if source is None or source.shape is None or not source.shape.is_static():
            return None
        return (int(np.prod(source.shape.numpy(), dtype=np.int64)),), 0

    def _gather(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        data = self._read(node.inputs[0], constant)
        indices = self._read(node.inputs[1], constant)
        if data is None or indices is None or data[1] != 1:
            return None
        picked: list[Size | None] = []
        for index in indices[0]:
            if not isinstance(index, int) or not -len(data[0]) <= index < len(data[0]):
                return None
            picked.append(data[0][index])
        return tuple(picked), indices[1]

    def _slice(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        data = self._read(node.inputs[0], constant)
        if data is None or data[1] != 1 or len(node.inputs) < 3:
            return None
        bounds = [self._read(value, constant) for value in node.inputs[1:]]
        if bounds[0] is None or bounds[1] is None:
            return None
        starts, ends = bounds[0][0], bounds[1][0]
        if len(starts) != 1 or not isinstance(starts[0], int) or not isinstance(ends[0], int):
            return None
        if optional(node, 4) is not None and (bounds[3] is None or bounds[3][0] != (1,)):
            return None
        return data[0][_clamp(starts[0], len(data[0])) : _clamp(ends[0], len(data[0]))], 1

    def _concat(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        joined: list[Size | None] = []
        for value in node.inputs:
            part = self._read(value, constant)
            if part is None:
                # an element-count is needed even where the elements are not known
                if value is None or value.shape is None or value.shape.rank() != 1:
                    return None
                length = value.shape[0]
                if not isinstance(length, int) or length > 64 or value.dtype != ir.DataType.INT64:
                    return None
                part = ((None,) * length, 1)
            if part[1] != 1:
                return None
            joined.extend(part[0])
        return tuple(joined), 1

    def _same(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        if node.op_type == "Cast" and node.attributes["to"].as_int() != ir.DataType.INT64:
            return None
        return self._read(node.inputs[0], constant) if node.inputs[0] in self._known else None

    def _squeeze(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        data = self._read(node.inputs[0], constant) if node.inputs[0] in self._known else None
        return (data[0], 0) if data is not None and len(data[0]) == 1 else None

    def _unsqueeze(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        data = self._read(node.inputs[0], constant) if node.inputs[0] in self._known else None
        return (data[0], 1) if data is not None and data[1] == 0 else None

    def _reshape(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        data = self._read(node.inputs[0], constant) if node.inputs[0] in self._known else None
        target = self._read(node.inputs[1], constant) if len(node.inputs) > 1 else None
        if data is None or target is None:
            return None
        if target[0] in ((-1,), (len(data[0]),)):
            return data[0], 1
        return (data[0], 0) if not target[0] and len(data[0]) == 1 else None

    def _arithmetic(self, node: ir.Node, constant: _IntegerConstant) -> tuple[_Dims, int] | None:
        left, right = (self._read(value, constant) for value in node.inputs)
        if left is None or right is None or len(left[0]) != 1 or len(right[0]) != 1:
            return None
        a, b = left[0][0], right[0][0]
        rank = max(left[1], right[1])
        if not isinstance(a, int) or not isinstance(b, int):
            return (None,), rank
        if node.op_type == "Div":
            return ((a // b,), rank) if a >= 0 and b > 0 else None
        return ({"Add": a + b, "Sub": a - b, "Mul": a * b}[node.op_type],), rank


def _may_not_fit(data: ir.Value | None, numbers: list[int]) -> bool:
    """Tell whether stated sizes stand for one of the data that is a number which is fed, as the longest of lengths."""
    if data is None or data.shape is None:
        return False
    stated = math.prod(dim for dim in data.shape if isinstance(dim, int))
    return stated != math.prod(numbers) and sized_by_data(data)


def _tell(node: ir.Node, target: _Dims) -> bool:
    """Give a Reshape's result the sizes that its target names, and the one left over; return whether one is new.

    The one left over is the input's where no other is, and a number where all of the input's are.
    """
    data, result = node.inputs[0], node.outputs[0]
    had = None if result.shape is None or result.shape.rank() != len(target) else list(result.shape)
    sizes: list[int | ir.SymbolicDim] = [
        dim if isinstance(dim, int) else ir.SymbolicDim(None) if had is None else had[axis]
        for axis, dim in enumerate(target)
    ]
    axis = next(at for at, dim in enumerate(target) if not isinstance(dim, int))
    if data is not None and data.shape is not None and not isinstance(sizes[axis], int):
        named = [dim for dim in data.shape if not isinstance(dim, int)]
        read, written = (math.prod(dim for dim in dims if isinstance(dim, int)) for dims in (data.shape, target))
        if not named and read % written == 0:
            sizes[axis] = read // written
        elif len(named) == 1 and read == written:
            sizes[axis] = named[0]
    result.shape = ir.Shape(sizes)
    return had is None or any(isinstance(new, int) and new != old for new, old in zip(sizes, had, strict=True))


def _clamp(index: int, length: int) -> int:
    return min(max(index + length if index < 0 else index, 0), length)


_Rule = Callable[[KnownShapes, ir.Node, _IntegerConstant], tuple[_Dims, int] | None]
_RULES: dict[str, _Rule] = {
    "Shape": KnownShapes._shape,
    "Size": KnownShapes._size,
    "Gather": KnownShapes._gather,
    "Slice": KnownShapes._slice,
    "Concat": KnownShapes._concat,
    "Identity": KnownShapes._same,
    "Cast": KnownShapes._same,
    "Squeeze": KnownShapes._squeeze,
    "Unsqueeze": KnownShapes._unsqueeze,
    "Reshape": KnownShapes._reshape,
    "Add": KnownShapes._arithmetic,
    "Sub": KnownShapes._arithmetic,
    "Mul": KnownShapes._arithmetic,
    "Div": KnownShapes._arithmetic,
}
