"""Small ONNX graphs written as expressions, and the reference that recognised graphs are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

Operand = "Term | float | np.ndarray"


class Sketch:
    """A graph under construction: ``sketch.input(...)`` gives a term, arithmetic on terms adds nodes."""

    def __init__(self, opset: int = 20, dtype: ir.DataType = ir.DataType.FLOAT) -> None:
        self.dtype = dtype
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="sketch")
        self.count = 0

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def input(self, shape: Sequence[int | str], name: str = "x") -> Term:
        dims = [dim if isinstance(dim, int) else ir.SymbolicDim(dim) for dim in shape]
        value = ir.Value(name=name, type=ir.TensorType(self.dtype), shape=ir.Shape(dims))
        self.graph.inputs.append(value)
        return Term(self, value)

    def constant(self, values: Any, dtype: ir.DataType | None = None) -> ir.Value:
        array = np.asarray(values)
        if array.dtype.kind == "f":
            array = array.astype((dtype or self.dtype).numpy())
        elif array.dtype.kind == "i":
            array = array.astype(np.int64)
        tensor = ir.tensor(array, name=self._name("c"))
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def op(self, op_type: str, *inputs: Any, **attributes: Any) -> Term:
        terms = [item for item in inputs if isinstance(item, Term)]
        data = terms[1] if op_type == "Where" else terms[0]
        values = [
            None
            if item is None
            else item.value
            if isinstance(item, Term)
            else item
            if isinstance(item, ir.Value)
            else self.constant(
                float(item) if isinstance(item, int | float) and not isinstance(item, bool) else item, data.value.dtype
            )
            for item in inputs
        ]
        node = ir.node(op_type, values, attributes, name=self._name(op_type))
        node.outputs[0].name = self._name("v")
        kind = ir.DataType(attributes["to"]) if op_type == "Cast" else data.value.dtype
        node.outputs[0].type = ir.TensorType(ir.DataType.BOOL if op_type == "Less" else kind)
        self.graph.append(node)
        return Term(self, node.outputs[0])

    def model(self, *outputs: Term) -> ir.Model:
        for index, term in enumerate(outputs):
            term.value.name = f"y{index}"
            self.graph.outputs.append(term.value)
        model = ir.Model(self.graph, ir_version=10)
        import onnx_ir.passes.common as common

        common.ShapeInferencePass()(model)
        return model


@dataclass(eq=False)
class Term:
    """A value of a sketch."""

    sketch: Sketch
    value: ir.Value

    def op(self, op_type: str, *inputs: Any, **attributes: Any) -> Term:
        return self.sketch.op(op_type, self, *inputs, **attributes)

    def mean(self, axes: Sequence[int] = (-1,), keep: bool = True, by: str = "ReduceMean") -> Term:
        return self.op(by, np.array(axes), keepdims=int(keep))

    def sum(self, axes: Sequence[int] = (-1,), keep: bool = True) -> Term:
        return self.mean(axes, keep, "ReduceSum")

    def __add__(self, other: Any) -> Term:
        return self.op("Add", other)

    def __radd__(self, other: Any) -> Term:
        return self.sketch.op("Add", other, self)

    def __sub__(self, other: Any) -> Term:
        return self.op("Sub", other)

    def __rsub__(self, other: Any) -> Term:
        return self.sketch.op("Sub", other, self)

    def __mul__(self, other: Any) -> Term:
        return self.op("Mul", other)

    def __rmul__(self, other: Any) -> Term:
        return self.sketch.op("Mul", other, self)

    def __truediv__(self, other: Any) -> Term:
        return self.op("Div", other)

    def __rtruediv__(self, other: Any) -> Term:
        return self.sketch.op("Div", other, self)

    def __pow__(self, exponent: float) -> Term:
        return self.op("Pow", float(exponent))

    def __neg__(self) -> Term:
        return self.op("Neg")

    def sqrt(self) -> Term:
        return self.op("Sqrt")

    def rsqrt(self) -> Term:
        return self.op("Sqrt").op("Reciprocal")

    def reshape(self, *dims: int) -> Term:
        return self.op("Reshape", np.array(dims))

    def transpose(self, *order: int) -> Term:
        return self.op("Transpose", perm=list(order))

    def cast(self, dtype: ir.DataType) -> Term:
        return self.op("Cast", to=int(dtype))

    # numpy must not take over arithmetic with an array on the left
    __array_ufunc__ = None


def normalization(
    x: torch.Tensor,
    axes: Sequence[int],
    *,
    epsilon: float,
    correction: int = 0,
    centred: bool = True,
    outside: bool = False,
    scale: Any = 1.0,
    shift: Any = 0.0,
    groups: int | None = None,
) -> torch.Tensor:
    """Compute a normalization in float64 with torch's own statistics; epsilon as float32 holds it."""
    epsilon = float(np.float32(epsilon))
    scale, shift = (torch.as_tensor(np.float32(item)).double() for item in (scale, shift))
    shape = x.shape
    if groups is not None:
        x = x.reshape(shape[0], groups, -1)
        axes = (2,)
    mean = x.mean(tuple(axes), keepdim=True) if centred else torch.zeros((), dtype=x.dtype)
    if centred:
        variance = torch.var(x, tuple(axes), correction=correction, keepdim=True)
    else:
        variance = torch.square(x).mean(tuple(axes), keepdim=True)
    root = variance.sqrt() + epsilon if outside else (variance + epsilon).sqrt()
    return ((x - mean) / root).reshape(shape) * scale + shift


@pytest.fixture(scope="session")
def sketch() -> type[Sketch]:
    return Sketch


@pytest.fixture(scope="session")
def reference():
    return normalization
