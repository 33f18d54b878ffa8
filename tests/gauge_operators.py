"""One drawn use of every operator that has a rule: attributes, shapes, which operands are constants, of what type.

Add a row here with every new row of ``rules.RULES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper

from normdeploy.graph import AFFINE_DOMAIN

SIZES = (2, 4, 3, 3)
"""Batch, channels, height, width."""


@dataclass
class Draw:
    """What a strategy draws from, and what it draws in.

    Args:
        g: the graph builder. rng: draws.
        integers: weights of linear operators are stored in integers.
    """

    g: Any
    rng: np.random.Generator
    integers: bool = False
    count: int = 0

    def of(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chosen(self, *makers: Callable[[], Any]) -> Any:
        """Make one of several things, and nothing else."""
        return self.of(*makers)()

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def flag(self) -> bool:
        return bool(self.rng.integers(2))

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape)

    def away(self, *shape: int) -> np.ndarray:
        """Numbers of either sign that are not near 0."""
        return self.rng.uniform(0.5, 2, shape) * self.rng.choice([-1.0, 1.0], shape)

    def x(self, *shape: int) -> str:
        """A computed operand."""
        self.count += 1
        return str(self.g.input(f"x{self.count}", list(shape)))

    def dims(self, low: int = 1, high: int = 4) -> list[int]:
        """A shape of small sizes."""
        return [self.number(1, 4) for _ in range(self.number(low, high))]

    def weight(self, *shape: int) -> Any:
        """A constant weight: floats, or integers with steps of their own along one axis or with one for all."""
        if not self.integers:
            return self.away(*shape)
        stored = self.rng.integers(-100, 100, shape).astype(np.int8)
        axis = self.of(None, *range(len(shape)))
        steps = self.rng.uniform(0.01, 0.1, () if axis is None else shape[axis])
        zero = None
        if self.flag():
            zero = self.g.constant(self.rng.integers(-5, 5, steps.shape).astype(np.int8))
        operands = [self.g.constant(stored, "weight.stored"), steps, *([] if zero is None else [zero])]
        return self.g.op("DequantizeLinear", *operands, **({} if axis is None else {"axis": axis}))


def convolution(op: str, d: Draw) -> Any:
    rank, groups = d.number(1, 2), d.of(1, 1, 2)
    kernel = [d.number(1, 2) for _ in range(rank)]
    inside, outside = groups * d.number(1, 2), groups * d.number(1, 2)
    attributes: dict[str, Any] = {"group": groups, "strides": [d.number(1, 2) for _ in kernel]}
    attributes["dilations"] = [d.number(1, 2) for _ in kernel]
    if op == "Conv" and d.flag():
        attributes["pads"] = [d.number(0, 1) for _ in kernel * 2]
    first, second = (outside, inside // groups) if op == "Conv" else (inside, outside // groups)
    bias = d.chosen(list, lambda: [d.normal(outside)], lambda: [d.normal(outside) if d.integers else d.x(outside)])
    x = d.x(2, inside, *(d.number(3, 4) for _ in kernel))
    return d.g.op(op, x, d.weight(first, second, *kernel), *bias, **attributes)


def deformed(op: str, d: Draw) -> Any:
    groups = d.of(1, 2)
    weight = d.weight(4, 4 // groups, 2, 2)
    masked = d.flag()
    bias = [d.normal(4)] if d.flag() else [None] if masked else []
    mask = [d.x(2, 4, 2, 2)] if masked else []
    # small: onnx's reference reads point by point
    return d.g.op(op, d.x(2, 4, 3, 3), weight, d.x(2, 8, 2, 2), *bias, *mask, group=groups)


def recurrent(op: str, d: Draw) -> Any:
    gates, hidden, size = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2, 3
    x, recurrence = d.x(3, 2, size), d.normal(1, gates * hidden, hidden)
    extra = d.chosen(
        list, lambda: [d.normal(1, 2 * gates * hidden)], lambda: [None, None, d.x(1, 2, hidden)]
    )  # fmt: skip
    return d.g.op(op, x, d.weight(1, gates * hidden, size), recurrence, *extra, hidden_size=hidden, outputs=2)[0]


def matmul(op: str, d: Draw) -> Any:
    stack = d.of([], [2], [2, 3])
    m, k, n = d.number(1, 3), d.number(1, 3), d.number(1, 3)
    own = d.of([], [1] * len(stack), stack) if stack else []
    kind = d.of("constant", "constant left", "computed", "average", "average by columns", "vector", "vector left")
    if kind == "vector":
        return d.g.op(op, d.x(*d.of([k], [m, k], [*stack, m, k])), d.chosen(lambda: d.away(k), lambda: d.x(k)))
    if kind == "vector left":
        left = d.chosen(lambda: d.away(k), lambda: d.x(k))
        right = d.away(k, n) if isinstance(left, str) and d.flag() else d.x(*stack, k, n)
        return d.g.op(op, left, right)
    if kind == "computed":
        return d.g.op(op, d.x(*stack, m, k), d.x(*own, k, n))
    if kind == "average":
        return d.g.op(op, d.g.op("Softmax", d.x(*stack, m, k), axis=d.of(-1, -2)), d.x(*own, k, n))
    if kind == "average by columns":
        axes = [*range(len(stack)), len(stack) + 1, len(stack)]
        turned = d.g.op("Transpose", d.g.op("Softmax", d.x(*stack, n, k), axis=d.of(-1, -2)), perm=axes)
        return d.g.op(op, d.x(*own, m, k), turned)
    if kind == "constant left":
        return d.g.op(op, d.weight(*own, m, k), d.x(*stack, k, n))
    y = d.g.op(op, d.x(*stack, m, k), d.weight(*own, k, n))
    return d.g.op("Add", *d.of((y, d.normal(n)), (d.normal(n), y))) if d.flag() else y


def gemm(op: str, d: Draw) -> Any:
    m, k, n, (turn_a, turn_b) = d.number(1, 3), d.number(1, 3), d.number(1, 3), (d.number(0, 1), d.number(0, 1))
    a, b = ((k, m) if turn_a else (m, k)), ((n, k) if turn_b else (k, n))
    operands = (d.x(*a), d.weight(*b)) if d.flag() else (d.weight(*a), d.x(*b))
    shapes = ((n,), (m, 1), (m, n), (1,))
    addend = d.chosen(list, lambda: [d.normal(*d.of(*shapes))], lambda: [d.x(n)])
    numbers = {"alpha": float(d.away()), "beta": float(d.away())}
    return d.g.op(op, *operands, *addend, transA=turn_a, transB=turn_b, **numbers)


def norm(op: str, d: Draw) -> Any:
    if op in ("LayerNormalization", "RMSNormalization"):
        axis, shape = d.of(-1, 1, 2), (2, 3, 4)
        size = shape[axis:] if axis != -1 else shape[2:]
        bias = [d.normal(*size)] if op == "LayerNormalization" and d.flag() else []
        gain = d.chosen(lambda: d.away(*size), lambda: d.away(*(1 for _ in size)), lambda: d.x(*size))
        return d.g.op(op, d.x(*shape), gain, *bias, axis=axis)
    groups = {"num_groups": d.of(1, 2, 4)} if op == "GroupNormalization" else {}
    return d.g.known(d.g.op(op, d.x(2, 4, 5), d.away(4), d.normal(4), **groups), 2, 4, 5)


def nothing(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(*d.dims()))


def transpose(op: str, d: Draw) -> Any:
    dims = d.dims()
    return d.g.op(op, d.x(*dims), **({"perm": [int(at) for at in d.rng.permutation(len(dims))]} if d.flag() else {}))


def slices(op: str, d: Draw) -> Any:
    dims = d.dims()
    axes = np.array([at for at in range(len(dims)) if d.flag()] or [0])
    steps = np.array([d.of(1, 1, 2, -1) for _ in axes])
    starts = np.array([d.number(0, 1) if step > 0 else -1 for step in steps])
    ends = np.array([d.of(dims[axis], 2**40, max(dims[axis] - 1, 1)) if step > 0 else -(2**40)
                     for axis, step in zip(axes, steps, strict=True)])  # fmt: skip
    starts = np.where(np.array([dims[axis] for axis in axes]) == 1, np.where(steps > 0, 0, -1), starts)
    starts = np.where((steps > 0) & (starts >= ends), 0, starts)
    if d.flag():
        return d.g.op(op, d.x(*dims), starts, ends, axes, steps)
    computed = d.g.input("at", [len(axes)], np.int64)  # 0: feeds draws 0, 1 or 2
    return d.g.op(op, d.x(*[6 for _ in dims]), computed, np.full(len(axes), 5), axes)


def split(op: str, d: Draw) -> Any:
    dims = d.dims(2)
    axis = d.number(0, len(dims) - 1)
    dims[axis] = 4
    sizes = d.of(np.array([1, 3]), np.array([2, 2]), None)
    if sizes is None:
        return d.g.op(op, d.x(*dims), axis=axis, num_outputs=2, outputs=2)
    return d.g.op(op, d.x(*dims), sizes, axis=axis - d.of(0, len(dims)), outputs=2)


def gather(op: str, d: Draw) -> Any:
    dims = d.dims()
    axis = d.number(0, len(dims) - 1)
    dims[axis] = 3
    indices = d.of(np.array([2, 0, 0, -1]), np.array(1), np.array([[0, 1], [1, 1]]), None)
    if indices is None:
        indices = d.g.input("at", [2], np.int64)
    return d.g.op(op, d.x(*dims), indices, axis=axis)


def gather_elements(op: str, d: Draw) -> Any:
    dims = d.dims()
    axis = d.number(0, len(dims) - 1)
    shape = [d.number(1, 3) if place == axis else size for place, size in enumerate(dims)]
    indices = d.rng.integers(-dims[axis], dims[axis], shape)
    return d.g.op(op, d.x(*dims), d.g.input("at", shape, np.int64) if d.flag() else indices, axis=axis)


def gather_nd(op: str, d: Draw) -> Any:
    dims = d.dims(2)
    batch = d.number(0, 1)
    taken = d.number(1, len(dims) - batch)
    computed = d.flag()
    if computed:  # feeds draw 0, 1 or 2
        dims[batch : batch + taken] = [3] * taken
    shape = [*dims[:batch], *[2] * d.number(1 - batch, 1), taken]
    chosen = dims[batch : batch + taken]
    indices = d.rng.integers([-size for size in chosen], chosen, shape)
    return d.g.op(op, d.x(*dims), d.g.input("at", shape, np.int64) if computed else indices, batch_dims=batch)


def scatter(op: str, d: Draw) -> Any:
    """Updates of some places of a computed value, of zeros, or of a constant; places that repeat or are computed."""
    dims, computed = d.dims(2, 3), d.flag()
    if op == "ScatterElements":
        axis = d.number(0, len(dims) - 1)
        dims[axis] = 3  # feeds draw 0, 1 or 2
        shape = [d.number(1, 4) if at == axis else d.of(size, size, max(size - 1, 1)) for at, size in enumerate(dims)]
        new, attributes = shape, {"axis": d.of(axis, axis - len(dims))}
    else:
        depth = d.number(1, len(dims))
        dims[:depth] = [3] * depth
        shape, attributes = [*[2] * d.number(1, 2), depth], {}
        new = [*shape[:-1], *dims[depth:]]
    places = d.g.input("at", shape, np.int64) if computed else d.rng.integers(-3, 3, shape)
    whole = d.of("computed", "computed", "zeros", "expanded", "constant")
    updates = d.x(*new) if whole != "computed" or d.flag() else d.away(*new)
    if whole == "zeros":
        value = d.g.known(d.g.op("ConstantOfShape", np.array(dims), value=numpy_helper.from_array(np.zeros(1))), *dims)
    elif whole == "expanded":
        value = d.g.known(d.g.op("Expand", np.float64(0), np.array(dims)), *dims)
    else:
        value = d.x(*dims) if whole == "computed" else d.away(*dims)
    reduction = d.of("none", "add", "mul", "max", "min")
    return d.g.known(d.g.op(op, value, places, updates, reduction=reduction, **attributes), *dims)


def filled(op: str, d: Draw) -> Any:
    """Zeros or infinities of a shape that is computed, beside what is scaled."""
    dims = d.dims(2, 3)
    x = d.x(*dims)
    reader, number = d.of(("Add", 0.0), ("Max", 0.0), ("Max", -np.inf), ("Min", np.inf))
    value = numpy_helper.from_array(np.array([number]))
    return d.g.op(reader, x, d.g.known(d.g.op(op, d.g.op("Shape", x), value=value), *dims))


def concat(op: str, d: Draw) -> Any:
    dims = d.dims(2)
    axis = d.number(0, len(dims) - 1)
    parts = []
    for at in range(d.number(1, 3)):
        shape = [d.number(1, 3) if place == axis else size for place, size in enumerate(dims)]
        parts.append(d.normal(*shape) if at and d.flag() else d.x(*shape))
    return d.g.op(op, *parts, axis=axis)


def tile(op: str, d: Draw) -> Any:
    dims = d.dims()
    return d.g.op(op, d.x(*dims), np.array([d.number(1, 3) for _ in dims]))


def depth_to_space(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(2, 8, 2, 3), blocksize=2, mode=d.of("DCR", "CRD"))


def space_to_depth(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(2, 3, 4, 2), blocksize=2)


def reshape(op: str, d: Draw) -> Any:
    shape, target = d.of(
        ((2, 3, 4), [2, 12]), ((2, 3, 4), [6, 4]), ((2, 3, 4), [0, -1]), ((2, 3, 4), [4, 6]), ((2, 12), [2, 3, 2, 2]),
        ((1, 3), [3]), ((4,), [1, 2, 2]), ((2, 3, 4), [24]),
    )  # fmt: skip
    return d.g.op(op, d.x(*shape), np.array(target))


def flatten(op: str, d: Draw) -> Any:
    dims = d.dims(2)
    return d.g.op(op, d.x(*dims), axis=d.number(0, len(dims)))


def squeeze(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(1, 3, 1, 2), *d.of([], [np.array([0])], [np.array([-2])], [np.array([0, 2])]))


def unsqueeze(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(2, 3), d.of(np.array([0]), np.array([1, -1]), np.array([2])))


def expand(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(*d.of((3, 1), (1, 3, 4), (1,), (2, 1, 4))), np.array([2, 3, 4]))


def pad(op: str, d: Draw) -> Any:
    dims = [d.number(2, 4) for _ in range(d.number(2, 4))]
    widths = np.array([d.of(0, 0, 1, -1) for _ in dims * 2])
    mode = d.of("constant", "constant", "reflect", "edge", "wrap")
    widths = np.maximum(widths, 0) if mode != "constant" else widths
    if mode != "constant":
        return d.g.op(op, d.x(*dims), widths, mode=mode)
    value = d.chosen(list, lambda: [np.float64(0)], lambda: [np.float64(0.7)], lambda: [d.x()])
    return d.g.op(op, d.x(*dims), widths, *value)


def pool(op: str, d: Draw) -> Any:
    rank = d.number(1, 2)
    x = d.x(2, 3, *[5] * rank)
    if op.startswith("Global"):
        return d.g.op(op, x)
    kernel = [d.number(1, 3) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [d.number(1, 2) for _ in kernel]}
    attributes |= d.of({"pads": [d.number(0, size - 1) for size in kernel * 2]}, {"ceil_mode": 1}, {})
    if op == "AveragePool":
        attributes["count_include_pad"] = d.number(0, 1)
    return d.g.op(op, x, **attributes)


def reduction(op: str, d: Draw) -> Any:
    dims = d.dims(2)
    axes = d.of([], [np.array([0])], [np.array([-1])], [np.array([0, 1])], [np.array([], np.int64)])
    return d.g.op(op, d.x(*dims), *axes, keepdims=d.number(0, 1), noop_with_empty_axes=d.number(0, 1))


def picture(op: str, d: Draw) -> Any:
    block, size = d.of(([2, 3], [3, 4]), ([1, 2], [2, 4]), ([3], [5])), d.number(1, 2)
    strides = [d.number(1, 2) for _ in block[0]]
    columns = [(whole - part) // step + 1 for part, whole, step in zip(*block, strides, strict=True)]
    shape = 2, size * int(np.prod(block[0])), int(np.prod(columns))
    return d.g.op(op, d.x(*shape), np.array(block[1]), np.array(block[0]), strides=strides)


def running_sum(op: str, d: Draw) -> Any:
    dims = d.dims()
    axis = d.chosen(lambda: np.array(d.number(-len(dims), len(dims) - 1)), lambda: d.g.input("at", [], np.int64))
    dims = [*dims, 2, 2][:4] if isinstance(axis, str) else dims  # feeds draw 0, 1 or 2
    return d.g.op(op, d.x(*dims), axis, exclusive=d.number(0, 1), reverse=d.number(0, 1))


def powered(op: str, d: Draw) -> Any:
    power = {"Sqrt": 0.5, "Reciprocal": -1.0}.get(op) or d.of(2.0, 3.0, -1.0, 0.5, 1.5, 2.0, 0.0, 40.0)
    exponents = [np.array(power).reshape(d.of((), (1,)))] if op == "Pow" else []
    x = d.x(*d.dims())
    return d.g.op(op, x if power % 2 == 1 and d.flag() else d.g.op("Abs", x), *exponents)


def compared(op: str, d: Draw) -> Any:
    x = d.x(*d.dims())
    if op == "Sign":
        return d.g.op(op, x)
    operands = [x, np.array(d.of(0.0, 0.0, 0.0, 0.5))]
    return d.g.op("Cast", d.g.op(op, *operands[:: d.of(1, -1)]), to=11)


def largest(op: str, d: Draw) -> Any:
    dims = d.dims()
    axis = d.number(-len(dims), len(dims) - 1)
    if op == "Hardmax":
        return d.g.op(op, d.x(*dims), axis=axis)
    if op != "TopK":  # places, told as floats
        return d.g.op("Cast", d.g.op(op, d.x(*dims), axis=axis, keepdims=d.number(0, 1)), to=11)
    count = np.array([d.number(1, dims[axis])])
    return d.g.op(op, d.x(*dims), count, axis=axis, largest=d.number(0, 1), outputs=2)[0]


def masked(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(*d.dims(2)), *d.of([], [np.array(d.number(-1, 1))]), upper=d.number(0, 1))


def reverse_sequence(op: str, d: Draw) -> Any:
    dims = [3, 3, *d.dims(1, 2)]
    lengths = d.chosen(lambda: d.rng.integers(1, 4, 3), lambda: d.g.input("at", [3], np.int64))
    batch = d.number(0, 1)
    return d.g.op(op, d.x(*dims), lengths, batch_axis=batch, time_axis=1 - batch)


def compress(op: str, d: Draw) -> Any:
    dims = d.dims()
    axis = d.number(-len(dims), len(dims) - 1)
    condition = d.g.constant(np.array([d.flag() for _ in range(dims[axis] - 1)] + [True]))
    return d.g.op(op, d.x(*dims), condition, axis=axis)


def resize(op: str, d: Draw) -> Any:
    scales = d.of([1, 1, 2, 1.5], [1, 1, 1, 0.5], [1, 1, 1.2, 2], [1, 1, 1, 1])
    d.g.initializers.append(numpy_helper.from_array(np.array(scales, np.float32), "scales"))
    mode = d.of("nearest", "linear")
    if d.flag():
        return d.g.op(op, d.x(2, 3, 4, 4), None, "scales", mode=mode)
    return d.g.op(op, d.x(2, 3, 4, 4), None, None, np.array(d.of([2, 3, 4, 8], [2, 3, 6, 4])), mode=mode)


def grid_sample(op: str, d: Draw) -> Any:
    places = d.chosen(lambda: 1.5 * d.normal(2, 3, 4, 2), lambda: d.x(2, 3, 4, 2))
    around = d.of("zeros", "border", "reflection")
    return d.g.op(op, d.x(2, 3, 4, 4), places, mode="linear", padding_mode=around, align_corners=d.number(0, 1))


def operands(d: Draw, count: int, make: Callable[..., np.ndarray]) -> list[Any]:
    """Operands that are broadcast to one shape, of which the first is computed, and one is as large as the result."""
    dims = d.dims(1, 3)
    whole, found = d.number(0, count - 1), []
    for at in range(count):
        shape = dims if at == whole else [d.of(1, size) for size in dims][d.number(0, len(dims) - 1) :]
        found.append(make(*shape) if at and d.flag() else d.x(*shape))
    return [found[int(at)] for at in d.rng.permutation(count)]


def total(op: str, d: Draw) -> Any:
    return d.g.op(op, *operands(d, 2 if op in ("Add", "Sub") else d.number(1, 3), d.normal))


def product(op: str, d: Draw) -> Any:
    if op == "Mul" and d.number(0, 2) == 0:  # an average, where it sums over the axis of the Softmax
        sizes, axis = [d.number(1, 3) for _ in range(3)], d.number(0, 2)
        weights = d.g.op("Softmax", d.x(*(d.of(size, size, 1) for size in sizes)), axis=axis)
        data = d.x(*sizes[d.number(0, 1) :])
        whole = d.g.op(op, *d.of((weights, data), (data, weights)))
        return d.g.op("ReduceSum", whole, np.array([d.of(axis, axis, 1)]), keepdims=d.number(0, 1))
    return d.g.op(op, *operands(d, 2, d.away))


def choice(op: str, d: Draw) -> Any:
    return d.g.op(op, *operands(d, d.number(1, 3), d.normal))


def activation(op: str, d: Draw) -> Any:
    dims = d.dims(2)
    if op == "LeakyRelu":
        return d.g.op(op, d.x(*dims), alpha=float(d.normal()))
    slope = [d.normal(*dims[1:]) if d.flag() else d.x(*dims[1:])] if op == "PRelu" else []
    return d.g.op(op, d.x(*dims), *slope)


def where(op: str, d: Draw) -> Any:
    condition, kind = d.rng.integers(0, 2, (3, 4)).astype(bool), d.number(0, 4)
    x = d.x(2, 3, 4) if kind < 4 else d.x(*d.of((2, 3, 4), (2, 1, 4), (4,)))
    makers = (
        lambda: d.normal(3, 4),
        d.normal,
        lambda: d.x(2, 3, 4),
        lambda: d.x(3, 1),
        lambda: d.of(0.0, 0 * d.normal(3, 1)),
    )
    other = makers[kind]()
    return d.g.op(op, condition, *((x, other) if d.flag() else (other, x)))


def clip(op: str, d: Draw) -> Any:
    low, high = np.float64(-0.5), np.float64(0.75)
    bounds = d.chosen(
        list, lambda: [low], lambda: [0 * high], lambda: [None, high], lambda: [low, high], lambda: [high, low],
        lambda: [d.x()], lambda: [low, d.x()],
    )  # fmt: skip
    return d.g.op(op, d.x(*d.dims()), *bounds)


def cast(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(*d.dims()), to=11)


def softmax(op: str, d: Draw) -> Any:
    return d.g.op(op, d.x(2, 3, 4), axis=d.of(-1, 0, 1))


def einsum(op: str, d: Draw) -> Any:
    sizes = {label: d.number(1, 3) for label in "bhlktv"}
    equation = d.of(
        "bhlk,bhtk->bhlt", "blhk,bthk->bhlt", "bhlt,bthv->blhv", "lk,k->l", "lk,tk->tl", "bk,bk->b", "lk->kl"
    )
    terms = equation.split("->")[0].split(",")
    at = d.number(0, 2 * len(terms))  # one of them may be a constant
    operands = [d.normal(*(sizes[label] for label in term)) if index == at and len(terms) > 1 else
                d.x(*(sizes[label] for label in term)) for index, term in enumerate(terms)]  # fmt: skip
    if at != 0 and d.flag():
        operands[0] = d.g.op("Softmax", operands[0], axis=d.of(-1, -2))
    if equation.count("bh") == equation.count("b"):
        equation = d.of(equation, equation.replace("bh", "..."), equation.replace("bh", "...").partition("->")[0])
    return d.g.op(op, *operands, equation=equation)


STRATEGIES: dict[tuple[str, str], Callable[[str, Draw], Any]] = {
    (domain, op): strategy
    for domain, ops, strategy in (
        ("", "Conv ConvTranspose", convolution),
        ("", "DeformConv", deformed),
        ("", "LSTM GRU RNN", recurrent),
        ("", "MatMul", matmul),
        ("", "Gemm", gemm),
        ("", "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization", norm),
        (AFFINE_DOMAIN, "Affine", nothing),
        ("", "Identity Relu Neg Abs Dropout", nothing),
        ("", "Transpose", transpose),
        ("", "Slice", slices),
        ("", "Split", split),
        ("", "Gather", gather),
        ("", "GatherElements", gather_elements),
        ("", "GatherND", gather_nd),
        ("", "ScatterElements ScatterND", scatter),
        ("", "ConstantOfShape", filled),
        ("", "Concat", concat),
        ("", "Tile", tile),
        ("", "DepthToSpace", depth_to_space),
        ("", "SpaceToDepth", space_to_depth),
        ("", "Reshape", reshape),
        ("", "Flatten", flatten),
        ("", "Squeeze", squeeze),
        ("", "Unsqueeze", unsqueeze),
        ("", "Expand", expand),
        ("", "Pad", pad),
        ("", "AveragePool GlobalAveragePool MaxPool GlobalMaxPool LpPool GlobalLpPool", pool),
        ("", "CumSum", running_sum),
        ("", "TopK ArgMax ArgMin Hardmax", largest),
        ("", "Pow Sqrt Reciprocal", powered),
        ("", "Sign Greater GreaterOrEqual Less LessOrEqual", compared),
        ("", "Trilu", masked),
        ("", "ReverseSequence", reverse_sequence),
        ("", "Compress", compress),
        ("", "ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceLogSumExp", reduction),
        ("", "Col2Im", picture),
        ("", "Resize", resize),
        ("", "GridSample", grid_sample),
        ("", "Add Sub Sum Mean", total),
        ("", "Mul Div", product),
        ("", "Max Min", choice),
        ("", "LeakyRelu PRelu", activation),
        ("", "Where", where),
        ("", "Clip", clip),
        ("", "Cast", cast),
        ("", "Softmax LogSoftmax", softmax),
        ("", "Einsum", einsum),
    )
    for op in ops.split()
}

LINEAR = {"Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "MatMul", "Gemm"}
"""Operators whose weights may be stored in integers."""
