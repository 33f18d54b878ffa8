"""A MatMul or Gemm by a fixed weight, with the bias Add behind it, oriented: y[r, n] = sum_k x[r, k] W[k, n] + C."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import constant_tensor, is_constant
from normdeploy.graph.edit import only_reader
from normdeploy.graph.linear_view import Linear, linear_of
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.traits import is_standard
from normdeploy.graph.weight import Weight, fixed_weight
from normdeploy.rewrite.affine.axes import dims_of


@dataclass(frozen=True)
class Product:
    """A matrix product by a fixed weight.

    Args:
        linear: the MatMul or Gemm, its weight and the computed operand, and which of them are turned to orient it.
        weight: the fixed one.
        rank: of the result.
        addend: who holds the bias of floats, and where: the Gemm itself or an Add; None where there is none.
    """

    linear: Linear
    weight: Weight
    rank: int
    addend: tuple[ir.Node, int] | None

    @property
    def node(self) -> ir.Node:
        """The MatMul or Gemm."""
        return self.linear.node

    @property
    def x(self) -> int:
        """Which input is the computed one."""
        return self.linear.data

    @property
    def summed(self) -> int:
        """The weight's axis that is summed over."""
        return self.linear.input_axis(len(self.weight.shape))

    @property
    def written(self) -> int:
        """The weight's axis that stands in the result."""
        return len(self.weight.shape) * 2 - 3 - self.summed

    @property
    def result(self) -> ir.Value:
        """The product with its bias."""
        return self.node.outputs[0] if self.addend is None else self.addend[0].outputs[0]


def product_of(node: ir.Node) -> Product | None:
    """Return a MatMul or Gemm as a product by a fixed weight; None for any other."""
    linear = linear_of(node) if is_standard(node, "MatMul", "Gemm") else None
    if linear is None:
        return None
    dims = [dims_of(required(node, index)) for index in (0, 1)]
    result = dims_of(node.outputs[0])
    if result is None or any(side is None or len(side) < 2 for side in dims):
        return None
    weight = fixed_weight(required(node, linear.weight))
    if weight is None or constant_tensor(required(node, linear.data)) is not None:
        return None
    if linear.bias is None:
        return Product(linear, weight, len(result), bias_behind(node.outputs[0]))
    addend = (node, linear.bias) if is_constant(linear.value(linear.bias)) else None
    return Product(linear, weight, 2, addend)


def bias_behind(value: ir.Value) -> tuple[ir.Node, int] | None:
    """Return the Add of a constant that is the only reader of ``value`` and keeps its shape, and where it has it."""
    node = only_reader(value)
    if node is None or value.shape is None:
        return None
    if not is_standard(node, "Add") or node.graph is not value.graph:
        return None
    index = 1 if node.inputs[0] is value else 0
    other = node.inputs[index]
    if other is None or other is value or not is_constant(other) or other.shape is None:
        return None
    if other.shape.rank() > value.shape.rank():
        return None
    # a graph output may name its sizes otherwise, so the result's shape alone does not tell
    fits = all(
        size in (1, own) for size, own in zip(reversed(list(other.shape)), reversed(list(value.shape)), strict=False)
    )
    return (node, index) if fits or node.outputs[0].shape == value.shape else None
