"""A small builder of graphs for the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from reference_operators import convolution

from normdeploy.graph import Evaluator, constant64
from normdeploy.rewrite.affine import AffineMap, Origin, new_affine
from normdeploy.rewrite.branches import MergeBranches
from normdeploy.rewrite.rewrite_context import RewriteContext


class Net:
    """A graph with one input ``x`` that grows node by node."""

    def __init__(self, shape: tuple[int | str, ...], dtype: ir.DataType = ir.DataType.FLOAT, opset: int = 20) -> None:
        self.dtype = dtype
        self.x = ir.Value(name="x", shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.graph = ir.Graph([self.x], [], nodes=[], opset_imports={"": opset}, name="net")
        self.model = ir.Model(self.graph, ir_version=10)
        self.context = RewriteContext()
        self._count = 0

    def constant(self, array: np.ndarray, name: str | None = None) -> ir.Value:
        self._count += 1
        name = name or f"c{self._count}"
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype.numpy())
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def op(self, op_type: str, *inputs: ir.Value | None, shape: Any = None, **attributes: Any) -> ir.Value:
        """Append a standard operator; return its first result."""
        self._count += 1
        name = f"{op_type.lower()}{self._count}"
        output = ir.Value(
            name=f"{name}.y", shape=None if shape is None else ir.Shape(shape), type=ir.TensorType(self.dtype)
        )
        node = ir.node(op_type, inputs, attributes, outputs=[output], name=name)
        self.graph.append(node)
        return output

    def rounded(self, array: np.ndarray) -> np.ndarray:
        """Return what the graph stores of an array."""
        return array.astype(self.dtype.numpy()).astype(np.float64)

    def check_rounding(self) -> None:
        """Every stored constant is its exact value rounded once."""
        for value in self.graph.initializers.values():
            exact = constant64(value)
            assert exact is not None
            assert value.const_value is not None
            np.testing.assert_array_equal(value.const_value.numpy(), exact.astype(self.dtype.numpy()))

    def affine(self, x: ir.Value, scale: np.ndarray, shift: np.ndarray, where: str = "norm") -> ir.Value:
        """Append an affine map along axis 1, as the recognition leaves it."""
        assert x.shape is not None
        rank = x.shape.rank()
        spread = (1, -1, *(1,) * (rank - 2)) if rank > 1 else (-1,)
        mapping = AffineMap.of(np.reshape(scale, spread), np.reshape(shift, spread), rank)
        self._count += 1
        like = ir.node("Identity", [x], outputs=[ir.Value(name="like", shape=x.shape, type=x.type)], name=where)
        node = new_affine(self.graph, x, mapping, like=like, origins=[Origin(where, "BatchNormalization", ("like",))])
        like.replace_input_with(0, None)
        node.outputs[0].name = f"affine{self._count}.y"
        self.graph.append(node)
        return node.outputs[0]

    def infer(self, feeds: dict[str, np.ndarray] | None = None) -> None:
        """Give every value the rank and the static dimensions that evaluation shows; dimension 0 stays dynamic."""
        shapes: dict[str, tuple[int, ...]] = {}

        def note(node: ir.Node, results: list) -> None:
            shapes.update({str(o.name): tuple(r.shape) for o, r in zip(node.outputs, results, strict=False)})

        Evaluator(self.model).run(feeds or self.feeds(), hook=note)
        for node in self.graph:
            for output in node.outputs:
                dims = shapes.get(str(output.name))
                if output.shape is None and dims is not None:
                    output.shape = ir.Shape(["n", *dims[1:]])

    def feeds(self, seed: int = 0, spatial: int = 9) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        assert self.x.shape is not None
        dims = [d if isinstance(d, int) else (2 if i == 0 else spatial + i) for i, d in enumerate(self.x.shape)]
        return {"x": rng.standard_normal(dims)}

    def end(self, *outputs: ir.Value) -> Net:
        self.graph.outputs.extend(outputs)
        self.infer()
        return self

    def run(self, feeds: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Evaluate the first output in float64."""
        name = str(self.graph.outputs[0].name)
        return Evaluator(self.model).run(feeds or self.feeds())[name].numpy()

    def merge(self) -> list[str]:
        """Run the pass; return the operators that are left."""
        MergeBranches(self.context)(self.model)
        return self.operators()

    def operators(self) -> list[str]:
        return [node.op_type for node in self.graph]


@pytest.fixture(scope="session")
def net() -> type[Net]:
    return Net


@pytest.fixture(scope="session")
def convolve() -> Any:
    """Return the convolution of arrays, in float64."""

    def in_float64(*operands: np.ndarray | None, **options: Any) -> np.ndarray:
        return convolution(*(None if x is None else np.asarray(x, np.float64) for x in operands), **options)

    return in_float64
