"""Constants in float64: read exactly, transformed lazily, rounded once.

A chain of folds multiplies one weight several times. Each step keeps the unrounded float64 value as a recipe
(:class:`ExactTensor`), so that the weight is rounded to its stored dtype exactly once, when the file is written, and
no big weight is held in float64 meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

AFFINE_DOMAIN = "normdeploy"
"""Domain of our internal operators; nothing of it is left in a written file."""

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class ExactTensor(ir.LazyTensor):
    """A constant whose float64 value is computed on demand and rounded once.

    Args:
        compute: returns the exact value as float64, of shape ``shape``; called on each use.
        dtype: the stored dtype to which :meth:`numpy` rounds (round to nearest even).
        shape: the value's shape.
        name: the initializer's name.
        cache: keep the float64 value after the first use; for small tensors only.
    """

    __slots__ = ("_compute", "_keep", "_kept")

    def __init__(
        self,
        compute: Callable[[], npt.NDArray[Any]],
        dtype: ir.DataType,
        shape: ir.Shape | tuple[int, ...],
        name: str | None = None,
        *,
        cache: bool = False,
    ) -> None:
        frozen = shape if isinstance(shape, ir.Shape) else ir.Shape(shape)
        super().__init__(self._rounded, dtype=dtype, shape=frozen, name=name)
        self._compute = compute
        self._keep = cache
        self._kept: npt.NDArray[np.float64] | None = None

    def numpy64(self) -> npt.NDArray[np.float64]:
        """Return the unrounded float64 value."""
        if self._kept is not None:
            return self._kept
        value = np.asarray(self._compute(), dtype=np.float64)
        expected = tuple(self.shape.numpy())
        if value.shape != expected:
            raise ValueError(f"constant {self.name!r} computed with shape {value.shape}; expected {expected}")
        if self._keep:
            self._kept = value
        return value

    def _rounded(self) -> ir.Tensor[npt.NDArray[Any]]:
        with np.errstate(over="ignore"):  # overflow to inf in float16 is the rounding's true result; verified later
            return ir.Tensor(self.numpy64().astype(self.dtype.numpy()), dtype=self.dtype, name=self.name)


def tensor64(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """Return a tensor's value: float64 (unrounded where known) for floats, its own dtype otherwise."""
    if isinstance(tensor, ExactTensor):
        return tensor.numpy64() if tensor.dtype in FLOATS else tensor.numpy()
    value = tensor.numpy()
    return value.astype(np.float64) if tensor.dtype in FLOATS else value


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant: an initializer that no caller can override, or a Constant node's output."""
    if value is None:
        return None
    if value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or producer.domain not in ("", "ai.onnx"):
        return None
    return ir.convenience.get_const_tensor(value)


def constant64(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return a constant's value, floats as unrounded float64; None if ``value`` is not a constant.

    An initializer that is also a graph input can be overridden by the caller and is no constant.
    """
    tensor = constant_tensor(value)
    return None if tensor is None else tensor64(tensor)
