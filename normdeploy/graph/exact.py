"""Constants in float64: read exactly, transformed lazily, rounded once.

A chain of folds multiplies one weight several times. Each step keeps the unrounded float64 value as a recipe
(:class:`ExactTensor`), so that the weight is rounded to its stored dtype exactly once, when the file is written, and
no big weight is held in float64 meanwhile. A recipe that can be computed piece by piece (:mod:`.constant_parts`) never
is: what reads it, and the rounding, go through it one piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.graph.constant_parts import Parts, Reader

AFFINE_DOMAIN = "normdeploy"
"""Domain of our internal operators; nothing of it is left in a written file."""

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def compress(array: Floats) -> Floats:
    """Return ``array`` with every axis along which it is constant shrunk to size 1."""
    whole = array
    for axis, size in enumerate(array.shape):
        if size > 1:
            before = (slice(None),) * axis
            head, second = array[(*before, slice(0, 1))], array[(*before, slice(1, 2))]
            if bool((head == second).all()) and bool((array == head).all()):
                array = head
    return array if array is whole else np.array(array)  # no part that keeps all of it


class ExactTensor(ir.LazyTensor):
    """A constant whose float64 value is computed on demand and rounded once.

    Args:
        compute: returns the exact value as float64, of shape ``shape``; called on each use.
        dtype: the stored dtype to which :meth:`numpy` rounds (round to nearest even).
        shape: the value's shape.
        name: the initializer's name.
        parts: computes the same value piece by piece.
    """

    __slots__ = ("_compute", "parts")

    def __init__(
        self,
        compute: Callable[[], Array],
        dtype: ir.DataType,
        shape: ir.Shape | tuple[int, ...],
        name: str | None = None,
        *,
        parts: Parts | None = None,
    ) -> None:
        frozen = shape if isinstance(shape, ir.Shape) else ir.Shape(shape)
        super().__init__(self._rounded, dtype=dtype, shape=frozen, name=name)
        self._compute = compute
        self.parts = parts

    def __repr__(self) -> str:
        # what a lazy tensor shows is the function that computes it, which is a method of this tensor
        return f"{type(self).__name__}<{self.dtype},{self.shape}>(name={self.name!r})"

    def numpy64(self) -> Floats:
        """Return the unrounded float64 value."""
        value = np.asarray(self._compute(), dtype=np.float64)
        expected = tuple(self.shape.numpy())
        if value.shape != expected:
            raise ValueError(f"constant {self.name!r} computed with shape {value.shape}; expected {expected}")
        return value

    def _rounded(self) -> ir.Tensor[Array]:
        with np.errstate(over="ignore"):  # overflow to inf in float16 is the rounding's true result; verified later
            if self.parts is None:
                rounded = round_once(self.numpy64(), self.dtype)
            else:
                shape = tuple(self.shape.numpy())
                rounded = np.empty(shape, self.dtype.numpy())
                for start, stop, piece in self.parts.pieces(shape):
                    rounded[self.parts.place(start, stop)] = round_once(piece, self.dtype)
            return ir.Tensor(rounded, dtype=self.dtype, name=self.name)


def round_once(values: Floats, dtype: ir.DataType) -> Array:
    """Round float64 to a stored dtype, to nearest, ties to even; what is too large for it becomes infinite.

    NumPy goes to bfloat16 by way of float32, which rounds twice: 1 + 2^-8 + 2^-40 would become 1. So float32 is made
    with its last bit saying that something was cut off ("to odd"), and the second rounding sees it.
    """
    with np.errstate(over="ignore"):
        if dtype != ir.DataType.BFLOAT16:
            return values.astype(dtype.numpy())
        near = np.array(values, dtype=np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    bits -= (np.abs(back) > np.abs(values)).astype(np.uint32)  # toward zero, infinity to the largest number
    bits |= ((back != values) & ~np.isnan(back)).astype(np.uint32)
    return bits.view(np.float32).astype(dtype.numpy())


def tensor64(tensor: ir.TensorProtocol) -> Array:
    """Return a tensor's value: float64 (unrounded where known) for floats, its own dtype otherwise."""
    if isinstance(tensor, ExactTensor):
        return tensor.numpy64() if tensor.dtype in FLOATS else tensor.numpy()
    value = tensor.numpy()
    return value.astype(np.float64) if tensor.dtype in FLOATS else value


def parts64(tensor: ir.TensorProtocol) -> Parts | None:
    """Return how to read a float tensor's value piece by piece; None where it is computed as a whole only."""
    if tensor.dtype not in FLOATS or not tensor.shape.dims or not tensor.size:
        return None
    if isinstance(tensor, ExactTensor):
        return tensor.parts
    axis = int(np.argmax(tensor.raw.strides)) if isinstance(tensor.raw, np.ndarray) else 0
    before = (slice(None),) * axis

    def load_stored() -> Callable[[int, int], Array]:
        array = tensor.numpy()
        return lambda start, stop: array[(*before, slice(start, stop))]

    def load() -> Reader:
        read = load_stored()
        return lambda start, stop: read(start, stop).astype(np.float64)

    return Parts(axis, load, origin=tensor, stored=load_stored)


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant: an initializer that no caller can override, or a Constant node's output."""
    if value is None or value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or producer.domain:
        return None
    return held_tensor(producer)


def held_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, or None where it holds none."""
    given = node.attributes.data.get("value")  # get_const_tensor asks it for each method of a tensor: 50 us
    if given is None or given.type is not ir.AttributeType.TENSOR or given.value is None:
        return ir.convenience.get_const_tensor(node.outputs[0])
    held: ir.TensorProtocol = given.value
    return held


def constant64(value: ir.Value | None) -> Array | None:
    """Return a constant's value, floats as unrounded float64; None if ``value`` is not a constant.

    An initializer that is also a graph input can be overridden by the caller and is no constant.
    """
    tensor = constant_tensor(value)
    return None if tensor is None else tensor64(tensor)


def is_constant(value: ir.Value | None) -> bool:
    """Tell whether a value is a float constant that no caller can override."""
    tensor = constant_tensor(value)
    return tensor is not None and tensor.dtype in FLOATS


def contracted(value: ir.Value, factor: Floats, axes: Sequence[int]) -> Floats:
    """Return the sum of a float constant times ``factor`` over ``axes``, which the result keeps with size 1.

    Args:
        value: a float constant of any size; it is read in pieces.
        factor: an array of its rank that broadcasts against it.
        axes: what is summed over.
    """
    tensor = constant_tensor(value)
    assert tensor is not None
    parts, shape, over = parts64(tensor), tuple(tensor.shape.numpy()), tuple(axes)
    if parts is None:
        return np.asarray((tensor64(tensor) * factor).sum(axis=over, keepdims=True))
    product = parts.scaled(factor)
    result = np.zeros([1 if axis in over else size for axis, size in enumerate(shape)])
    for start, stop, piece in product.pieces(shape):
        place = ... if parts.axis in over else parts.place(start, stop)
        result[place] += piece.sum(axis=over, keepdims=True)
    return result
