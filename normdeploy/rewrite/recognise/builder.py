"""Nodes and constants of an emission, before they enter the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import ExactTensor
from normdeploy.graph.edit import constant_of
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.rewrite_context import OWN_AFFINE, STATISTIC


class Builder:
    """Collects nodes and constants.

    Args:
        stem: prefix of the names of new values.
        dtype: of data and constants.

    Attributes:
        nodes: the nodes so far, in order.
        small: those of them that handle a few numbers only.
        constants: the constants so far.
    """

    def __init__(self, stem: str, dtype: ir.DataType) -> None:
        self.stem = stem
        self.dtype = dtype
        self.nodes: list[ir.Node] = []
        self.small: set[ir.Node] = set()
        self.constants: list[ir.Value] = []

    def op(
        self, op_type: str, inputs: list[ir.Value], *, outputs: int = 1, **attributes: int | float | list[int]
    ) -> ir.Value:
        """Append a node; return its first output, named and typed like the data."""
        name = f"{self.stem}_{op_type}_{len(self.nodes)}"
        values = [
            ir.Value(name=name if index == 0 else f"{name}_{index}", type=ir.TensorType(self.dtype))
            for index in range(outputs)
        ]
        node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), outputs=values, name=name)
        self.nodes.append(node)
        return values[0]

    def scalar(self, op_type: str, inputs: list[ir.Value], dtype: ir.DataType, **attributes: int) -> ir.Value:
        """Append a node that computes a few numbers from a shape: it passes over no data."""
        value = self.op(op_type, inputs, **attributes)
        value.type = ir.TensorType(dtype)
        self.small.add(self.nodes[-1])
        return value

    def statistic(self, op_type: str, inputs: list[ir.Value]) -> ir.Value:
        """Append a node that computes on statistics, one number per block."""
        value = self.op(op_type, inputs)
        self.nodes[-1].metadata_props[STATISTIC] = "1"
        return value

    def constant(self, role: str, values: Floats) -> ir.Value:
        """Make a float constant, exact until it is written."""
        held = np.array(values, dtype=np.float64, order="C")
        name = f"{self.stem}_{role}"
        tensor = ExactTensor(lambda: held, self.dtype, held.shape, name)
        return self._keep(constant_of(tensor, name))

    def integers(self, role: str, values: list[int]) -> ir.Value:
        """Make an int64 vector."""
        name = f"{self.stem}_{role}"
        return self._keep(constant_of(ir.tensor(np.array(values, dtype=np.int64), name=name), name))

    def affine(self, scale: Floats, shift: Floats, x: ir.Value) -> ir.Value:
        """Append scale x + shift, each only where it does something; both broadcast to x."""
        shape = x.shape
        for op_type, role, operand, neutral in (("Mul", "factor", scale, 1.0), ("Add", "offset", shift, 0.0)):
            if np.any(operand != neutral):
                x = self.op(op_type, [x, self.constant(role, operand)])
                x.shape = shape
                self.nodes[-1].metadata_props[OWN_AFFINE] = "1"
        return x

    def _keep(self, value: ir.Value) -> ir.Value:
        self.constants.append(value)
        return value


def free_stem(model: ir.Model, name: str) -> str:
    """Return a prefix that no name of the model begins with: a body's names must not hide those around it."""
    taken: list[str] = []
    for graph in graphs_of(model):
        taken += [*graph.initializers, *(str(v.name) for v in graph.inputs), *(str(n.name) for n in graph)]
        taken += [str(output.name) for node in graph for output in node.outputs]
    stem, count = f"{name}_norm", 1
    while any(other.startswith(stem) for other in taken):
        stem, count = f"{name}_norm{count}", count + 1
    return stem
