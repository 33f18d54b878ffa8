"""An ONNX graph that grows operator by operator, at random."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
Value = tuple[str, Shape]
"""A name, and the shape at a batch of 2."""

BATCH = 2


class Drawing:
    """A graph that grows at random.

    Args:
        rng: draws.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: list[Value] = []
        self.inputs: list[Value] = []

    def input(self, name: str, shape: Shape) -> None:
        self.inputs.append((name, shape))
        self.values.append((name, shape))

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def whole(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def op(self, kind: str, inputs: list[str], *shapes: tuple[int, ...], **attributes: object) -> Value:
        """Add an operator; return its first result."""
        at = len(self.nodes)
        names = [f"v{at}" if index == 0 else f"v{at}_{index}" for index in range(len(shapes))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"n{at}", **attributes))
        self.values += [(name, tuple(shape)) for name, shape in zip(names, shapes, strict=True)]
        return names[0], tuple(shapes[0])

    def normal(self, *shape: int) -> np.ndarray:
        return np.asarray(self.rng.normal(size=shape), np.float32)

    def factor(self, *shape: int) -> np.ndarray:
        """Return numbers of size 0.5 to 1.5; of both signs, now and then."""
        size = self.rng.random(shape) + 0.5
        return np.asarray(size * self.rng.choice([-1, 1], shape) if self.rng.random() < 0.4 else size, np.float32)

    def pick(self, fits: Callable[[Shape], bool] = bool) -> Value | None:
        """Return one of the values, rather a late one."""
        found = [value for value in self.values if fits(value[1])]
        return found[int(len(found) * math.sqrt(self.rng.random()))] if found else None

    def axis(self, shape: Shape, first: int = 1) -> int:
        return int(self.rng.integers(first, len(shape)))

    def proto(self) -> onnx.ModelProto:
        """Return the graph; what nothing reads is an output."""
        read = {name for node in self.nodes for name in node.input} | {name for name, _ in self.inputs}
        outputs = [value for value in self.values if value[0] not in read]
        declared = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape[1:]]) for name, shape in values]
            for values in (self.inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "drawn", *declared, initializer=self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
