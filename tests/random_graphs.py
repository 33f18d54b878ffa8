"""Graphs drawn at random: maps between products of computed values, moves, sums, norms and softmaxes, every value kept.

The networks of :mod:`random_networks` are what people write; these are what they do not: values read many times,
products of a value with its own transposed, splits of splits, outputs in the middle. Sizes are small and coincide.
"""

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


def affine(g: Drawing) -> None:
    found = g.pick()
    assert found is not None
    (name, shape), which = found, g.rng.random()
    along = [axis > 0 and g.rng.random() < 0.5 for axis in range(len(shape))]
    cells = [size if varies else 1 for size, varies in zip(shape, along, strict=True)]
    if which < 0.7:
        name, _ = g.op("Mul", [name, g.constant(g.factor(*cells))], shape)
    if which > 0.3:
        g.op("Add", [name, g.constant(g.normal(*cells))], shape)


def linear(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) > 1)
    if found is not None:
        (name, shape), width = found, int(g.rng.choice([2, 3, 4, 6]))
        product = g.op("MatMul", [name, g.constant(g.normal(shape[-1], width))], (*shape[:-1], width))
        if g.rng.random() < 0.5:
            g.op("Add", [product[0], g.constant(g.normal(width))], product[1])


def convolution(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) == 3 and shape[2] > 1)
    if found is not None:
        (name, shape), width, kernel = found, int(g.rng.choice([2, 3, 4])), int(g.rng.choice([1, 1, 2]))
        inputs = [name, g.constant(g.normal(width, shape[1], kernel))]
        inputs += [g.constant(g.normal(width))] if g.rng.random() < 0.5 else []
        g.op("Conv", inputs, (shape[0], width, shape[2] - kernel + 1))


def product(g: Drawing) -> None:
    """Multiply two computed values as matrices, the second one turned where that fits."""
    left = g.pick(lambda shape: len(shape) > 2)
    if left is None:
        return
    (name, shape), stacked = left, left[1][:-2]
    right = g.pick(lambda other: len(other) == len(shape) and other[:-2] == stacked and other[-2] == shape[-1])
    if right is None:
        found = g.pick(lambda other: len(other) == len(shape) and other[:-2] == stacked and other[-1] == shape[-1])
        assert found is not None  # itself
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        right = g.op("Transpose", [found[0]], tuple(found[1][axis] for axis in order), perm=order)
    g.op("MatMul", [name, right[0]], (*shape[:-1], right[1][-1]))


def einsum(g: Drawing) -> None:
    left = g.pick(lambda shape: len(shape) in (3, 4))
    if left is not None:
        (name, shape), letters = left, "abcd"[: len(left[1])]
        right = g.pick(lambda other: len(other) == len(shape) and other[:-2] == shape[:-2] and other[-1] == shape[-1])
        assert right is not None
        equation = f"{letters},{letters[:-2]}z{letters[-1]}->{letters[:-1]}z"
        g.op("Einsum", [name, right[0]], (*shape[:-1], right[1][-2]), equation=equation)


def transpose(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) > 2)
    if found is not None:
        order = [0, *(1 + g.rng.permutation(len(found[1]) - 1)).tolist()]
        g.op("Transpose", [found[0]], tuple(found[1][axis] for axis in order), perm=order)


def reshape(g: Drawing) -> None:
    found = g.pick(lambda shape: 1 < len(shape) < 6)
    if found is None:
        return
    (name, shape), axis = found, g.axis(found[1])
    divisors = [size for size in range(2, shape[axis]) if shape[axis] % size == 0]
    if axis + 1 < len(shape) and (not divisors or g.rng.random() < 0.5):
        new = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    elif divisors:
        size = int(g.rng.choice(divisors))
        new = (*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    else:
        return
    g.op("Reshape", [name, g.whole(0, *new[1:])], new)


def unsqueeze(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) < 5)
    if found is not None:
        axis = int(g.rng.integers(1, len(found[1]) + 1))
        g.op("Unsqueeze", [found[0], g.whole(axis)], (*found[1][:axis], 1, *found[1][axis:]))


def expand(g: Drawing) -> None:
    found = g.pick(lambda shape: 1 in shape[1:])
    if found is not None:
        shape = (found[1][0], *(3 if size == 1 else size for size in found[1][1:]))
        g.op("Expand", [found[0], g.whole(1, *shape[1:])], shape)


def two(g: Drawing) -> None:
    """Join two values element by element."""
    left = g.pick()
    assert left is not None
    same = g.rng.random() < 0.7

    def fits(shape: Shape) -> bool:
        if same or len(shape) != len(left[1]):
            return shape == left[1]
        return all(one == other or 1 in (one, other) for one, other in zip(shape, left[1], strict=True))

    right = g.pick(fits)
    assert right is not None
    kind = str(g.rng.choice(["Add", "Add", "Add", "Mul", "Mul", "Sub", "Max"]))
    g.op(kind, [left[0], right[0]], tuple(np.maximum(left[1], right[1]).tolist()))


def alone(g: Drawing) -> None:
    found = g.pick()
    assert found is not None
    g.op(str(g.rng.choice(["Relu", "Relu", "Abs", "LeakyRelu", "Neg", "Identity", "Sigmoid"])), [found[0]], found[1])


def softmax(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) > 1)
    if found is not None:
        g.op("Softmax", [found[0]], found[1], axis=g.axis(found[1]))


def norm(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) > 1)
    if found is not None:
        axis = g.axis(found[1])
        over = found[1][axis:]
        constants = [g.constant(g.factor(*over)), g.constant(g.normal(*over))]
        g.op("LayerNormalization", [found[0], *constants], found[1], axis=axis)


def cut(g: Drawing) -> None:
    found = g.pick(lambda shape: max(shape[1:], default=1) > 1)
    if found is not None:
        (name, shape) = found
        axis = int(g.rng.choice([axis for axis in range(1, len(shape)) if shape[axis] > 1]))
        start = int(g.rng.integers(0, shape[axis] - 1))
        stop = int(g.rng.integers(start + 1, shape[axis] + 1))
        ranges = [g.whole(number) for number in (start, stop, axis)]
        g.op("Slice", [name, *ranges], (*shape[:axis], stop - start, *shape[axis + 1 :]))


def concat(g: Drawing) -> None:
    left = g.pick(lambda shape: len(shape) > 1)
    if left is None:
        return
    (name, shape), axis = left, g.axis(left[1])
    rest = (*shape[:axis], *shape[axis + 1 :])
    right = g.pick(lambda other: len(other) == len(shape) and (*other[:axis], *other[axis + 1 :]) == rest)
    assert right is not None
    if (size := shape[axis] + right[1][axis]) <= 12:
        g.op("Concat", [name, right[0]], (*shape[:axis], size, *shape[axis + 1 :]), axis=axis)


def split(g: Drawing) -> None:
    found = g.pick(lambda shape: any(size % 2 == 0 for size in shape[1:]))
    if found is not None:
        (name, shape) = found
        axis = int(g.rng.choice([axis for axis in range(1, len(shape)) if shape[axis] % 2 == 0]))
        half = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
        g.op("Split", [name, g.whole(half[axis], half[axis])], half, half, axis=axis)


def reduction(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) > 2)
    if found is not None:
        (name, shape), axis, kept = found, g.axis(found[1]), g.rng.random() < 0.7
        kind = str(g.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax"]))
        g.op(kind, [name, g.whole(axis)], (*shape[:axis], *([1] * kept), *shape[axis + 1 :]), keepdims=int(kept))


def gather(g: Drawing) -> None:
    found = g.pick(lambda shape: len(shape) > 1)
    if found is not None:
        (name, shape), axis = found, g.axis(found[1])
        index = g.rng.integers(0, shape[axis], int(g.rng.integers(1, 5))).tolist()
        g.op("Gather", [name, g.whole(*index)], (*shape[:axis], len(index), *shape[axis + 1 :]), axis=axis)


STEPS: tuple[tuple[Callable[[Drawing], None], int], ...] = (
    (affine, 6), (linear, 2), (convolution, 1), (product, 3), (einsum, 1), (transpose, 2), (reshape, 2), (unsqueeze, 1),
    (expand, 1), (two, 5), (alone, 2), (softmax, 1), (norm, 1), (cut, 1), (concat, 1), (split, 1), (reduction, 1),
    (gather, 1),
)  # fmt: skip
"""What is added, and how often beside the others."""


def random_graph(seed: int, *, longest: int = 28) -> onnx.ModelProto:
    """Return a graph of up to about ``longest`` operators, with inputs x (N, T, C) and at times z (N, C, T)."""
    rng = np.random.default_rng(seed)
    g = Drawing(rng)
    tokens, channels = int(rng.choice([2, 3, 4])), int(rng.choice([2, 4, 6]))
    g.input("x", (BATCH, tokens, channels))
    if rng.random() < 0.3:
        g.input("z", (BATCH, channels, tokens))
    steps, weights = zip(*STEPS, strict=True)
    chances = np.array(weights) / sum(weights)
    count = int(rng.integers(6, longest))
    while len(g.nodes) < count:
        steps[int(rng.choice(len(steps), p=chances))](g)
    return g.proto()


def shapes_of(model: onnx.ModelProto, batch: int) -> dict[str, Shape]:
    """Return the shapes of a drawn graph's inputs at a size of the batch."""
    return {
        value.name: (batch, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        for value in model.graph.input
    }
