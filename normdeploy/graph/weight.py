"""The fixed weight of a linear operator: a float constant, or integers with steps (DequantizeLinear of a constant)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.graph.evaluated_region import evaluate_region
from normdeploy.graph.exact import constant_tensor, contracted, is_constant, tensor64
from normdeploy.graph.traits import is_standard

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weight:
    """A fixed weight.

    Args:
        value: the input of the operator.
        quantized: the DequantizeLinear that makes it; None for a float constant.
    """

    value: ir.Value
    quantized: ir.Node | None

    @property
    def stored(self) -> ir.Value:
        """What is stored: the floats, or the integers."""
        return self.value if self.quantized is None else _operand(self.quantized, 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        tensor = constant_tensor(self.stored)
        assert tensor is not None
        return tuple(tensor.shape.numpy())

    @property
    def dtype(self) -> ir.DataType:
        """Its float type: of the steps, where it is stored in integers."""
        tensor = constant_tensor(self.value if self.quantized is None else _operand(self.quantized, 1))
        assert tensor is not None
        return tensor.dtype

    @property
    def stem(self) -> str:
        """The name that a bias beside it is derived from."""
        return str(self.stored.name).removesuffix(".weight")

    def array(self) -> Floats:
        """Return what it stands for, in float64."""
        if self.quantized is None:
            return _exact(self.value)
        return np.asarray(evaluate_region([self.quantized], {}, [self.value])[0].numpy(), dtype=np.float64)

    def sum(self, factor: Floats, axes: Sequence[int]) -> Floats:
        """Return the sum of the weight times ``factor`` over ``axes``, which the result keeps with size 1."""
        if self.quantized is None:
            return contracted(self.value, factor, axes)
        return np.asarray((self.array() * factor).sum(axis=tuple(axes), keepdims=True))

    def free_axes(self, chosen: int) -> frozenset[int]:
        """Return the axes along which a factor may vary; ``chosen`` where there is a single step for all."""
        rank = len(self.shape)
        if self.quantized is None:
            return frozenset(range(rank))
        axis = self.quantized.attributes.get_int("axis", 1) % rank
        if self.quantized.attributes.get_int("block_size", 0):
            return frozenset(range(rank)) - {axis}
        return frozenset({axis if _exact(_operand(self.quantized, 1)).size > 1 else chosen % rank})


def fixed_weight(value: ir.Value | None) -> Weight | None:
    """Return a weight that is known before run time; None for a computed one."""
    if value is None:
        return None
    if is_constant(value):
        return Weight(value, None)
    producer = value.producer()
    if producer is None or not is_standard(producer, "DequantizeLinear"):
        return None
    zero = producer.inputs[2] if len(producer.inputs) > 2 else None
    if constant_tensor(producer.inputs[0]) is None or not is_constant(producer.inputs[1]):
        return None
    return None if zero is not None and constant_tensor(zero) is None else Weight(value, producer)


def _exact(value: ir.Value) -> Floats:
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor64(tensor)


def _operand(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value
