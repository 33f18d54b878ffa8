"""The fixed weight of a linear operator: a float constant, or integers with steps (DequantizeLinear of a constant)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.evaluated_region import evaluate_region
from normdeploy.graph.exact import constant_tensor, contracted, is_constant
from normdeploy.graph.operator_inputs import array_of, dtype_of, optional, required, shape_of
from normdeploy.graph.traits import is_standard


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
        return self.value if self.quantized is None else required(self.quantized, 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return shape_of(self.stored)

    @property
    def dtype(self) -> ir.DataType:
        """Its float type: of the steps, where it is stored in integers."""
        return dtype_of(self.value if self.quantized is None else required(self.quantized, 1))

    @property
    def stem(self) -> str:
        """The name that a bias beside it is derived from."""
        return str(self.stored.name).removesuffix(".weight")

    def array(self) -> Floats:
        """Return what it stands for, in float64."""
        if self.quantized is None:
            return array_of(self.value)
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
        return frozenset({axis if array_of(required(self.quantized, 1)).size > 1 else chosen % rank})


def fixed_weight(value: ir.Value | None) -> Weight | None:
    """Return a weight that is known before run time; None for a computed one."""
    if value is None:
        return None
    if is_constant(value):
        return Weight(value, None)
    producer = value.producer()
    if producer is None or not is_standard(producer, "DequantizeLinear"):
        return None
    zero = optional(producer, 2)
    if constant_tensor(producer.inputs[0]) is None or not is_constant(producer.inputs[1]):
        return None
    return None if zero is not None and constant_tensor(zero) is None else Weight(value, producer)
