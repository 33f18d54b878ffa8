"""What a random graph grows by, one operator or one block of a network at a time."""

from __future__ import annotations

import numpy as np
from graph_drawing import Drawing, Shape


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


def attention(g: Drawing) -> None:
    """Multiply what two layers make of a value, head by head, with maps in every place."""
    found = g.pick(lambda shape: len(shape) == 3)
    if found is None:
        return
    (name, shape), heads, depth = found, int(g.rng.choice([1, 2])), int(g.rng.choice([2, 3]))
    sides: list[str] = []
    for _ in range(2):
        source = name
        if g.rng.random() < 0.6:  # a convolution over the tokens, and its norm, as CvT has them
            turned, _ = g.op("Transpose", [source], (shape[0], shape[2], shape[1]), perm=[0, 2, 1])
            depthwise = g.constant(g.normal(shape[2], 1, 1))
            turned, _ = g.op("Conv", [turned, depthwise], (shape[0], shape[2], shape[1]), group=shape[2])
            for kind, make in (("Mul", g.factor), ("Add", g.normal)):
                turned, _ = g.op(kind, [turned, g.constant(make(shape[2], 1))], (shape[0], shape[2], shape[1]))
            source, _ = g.op("Transpose", [turned], shape, perm=[0, 2, 1])
        side, _ = g.op("MatMul", [source, g.constant(g.normal(shape[2], heads * depth))], (*shape[:2], heads * depth))
        if g.rng.random() < 0.7:
            side, _ = g.op("Add", [side, g.constant(g.normal(heads * depth))], (*shape[:2], heads * depth))
        if g.rng.random() < 0.3:
            side, _ = g.op("Mul", [side, g.constant(g.factor(heads * depth))], (*shape[:2], heads * depth))
        target = g.whole(0, shape[1], heads, depth)
        side, _ = g.op("Reshape", [side, target], (*shape[:2], heads, depth))
        sides.append(g.op("Transpose", [side], (shape[0], heads, shape[1], depth), perm=[0, 2, 1, 3])[0])
    scores = (shape[0], heads, shape[1], shape[1])
    if g.rng.random() < 0.5:
        result, _ = g.op("Einsum", sides, scores, equation="bhlk,bhtk->bhlt")
    else:
        turned, _ = g.op("Transpose", sides[1:], (shape[0], heads, depth, shape[1]), perm=[0, 1, 3, 2])
        result, _ = g.op("MatMul", [sides[0], turned], scores)
    cells = (heads, 1, 1) if g.rng.random() < 0.3 else (1,)
    g.op("Mul", [result, g.constant(g.factor(*cells))], scores)


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
