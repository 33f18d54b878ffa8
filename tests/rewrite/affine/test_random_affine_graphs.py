"""Random graphs of every operator that maps cross: the function stays, and each map has exactly one row."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

settings.load_profile("affine")

WIDTH = 4
"""Channels and size of every value [N, 4, 4, 4]: equal everywhere, so that no rule can lean on a size."""


class Net:
    """A random net of [N, 4, 4, 4] values."""

    def __init__(self, g, rng):
        self.g, self.rng, self.maps = g, rng, 0

    def constant(self, axis, positive):
        shape = [1] * 4
        shape[axis] = WIDTH
        values = self.rng.uniform(0.5, 2, shape)
        return values if positive else values * self.rng.choice([-1, 1], shape)

    def step(self, kind, x, y):
        g, rng = self.g, self.rng
        if kind == "conv":
            groups = int(rng.choice([1, 2, 4]))
            kernel = int(rng.choice([1, 3]))
            weight = rng.normal(size=(WIDTH, WIDTH // groups, kernel, kernel)) / WIDTH
            operands = [weight, rng.normal(size=WIDTH)] if rng.integers(2) else [weight]
            return g.op("Conv", x, *operands, group=groups, pads=[kernel // 2] * 4)
        if kind == "conv transpose":
            weight = rng.normal(size=(WIDTH, WIDTH // 2, 1, 1))
            return g.op("ConvTranspose", x, weight, group=2)
        if kind == "linear":
            product = g.op("MatMul", x, rng.normal(size=(WIDTH, WIDTH)) / 2)
            return g.op("Add", product, rng.normal(size=WIDTH)) if rng.integers(2) else product
        if kind == "linear on the left":
            return g.op("MatMul", rng.normal(size=(WIDTH, WIDTH)) / 2, x)
        if kind == "norm":
            self.maps += 1
            return g.batch_norm(x, WIDTH, rng, positive=bool(rng.integers(2)))
        if kind in ("Mul", "Add"):
            self.maps += 1
            # the name keeps it apart from its neighbours: a map of its own
            return g.op(kind, x, self.constant(int(rng.integers(1, 4)), bool(rng.integers(2))))
        if kind == "scalar":
            self.maps += 1
            return g.op("Mul", x, np.float64(rng.uniform(0.5, 2)))
        if kind == "sum":
            return g.op("Add", x, y)
        if kind == "product":
            return g.op("Mul", x, g.op("Softplus", y))  # no core of an activation that holds scalars
        if kind == "join":
            axis = int(rng.integers(1, 4))
            joined = g.op("Concat", x, y, axis=axis)
            half = [np.array([start]) for start in (2, 6)]
            return g.op("Slice", joined, *half, np.array([axis]))
        if kind == "split":
            axis = int(rng.integers(1, 4))
            left, right = g.op("Split", x, np.array([1, 3]), axis=axis, outputs=2)
            return g.op("Concat", right, left, axis=axis)
        if kind == "transpose":
            return g.op("Transpose", x, perm=[0, *(1 + rng.permutation(3)).tolist()])
        if kind == "reshape":
            middle = [[-1, 16, 4], [-1, 2, 2, 16], [-1, 64], [-1, 4, 16], [-1, 4, 2, 2, 4]][rng.integers(5)]
            return g.op("Reshape", g.op("Reshape", x, np.array(middle)), np.array([-1, 4, 4, 4]))
        if kind == "pool":
            operator = str(rng.choice(["AveragePool", "MaxPool"]))
            extra = {"count_include_pad": int(rng.integers(2))} if operator == "AveragePool" else {}
            return g.op(operator, x, kernel_shape=[3, 3], pads=[1] * 4, **extra)
        if kind == "pad":
            mode = str(rng.choice(["constant", "reflect", "edge"]))
            padded = g.op("Pad", x, np.array([0, 0, 1, 0, 0, 0, 0, 1]), mode=mode)
            return g.op("Slice", padded, np.array([0, 1]), np.array([4, 5]), np.array([2, 3]))
        if kind == "mean":
            axis = int(rng.integers(1, 4))
            return g.op("Add", x, g.op("ReduceMean", y, np.array([axis])))
        if kind == "diamond":
            beside = g.op(str(rng.choice(["Neg", "Identity"])), g.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4))
            return g.op(str(rng.choice(["Add", "Sub", "Mul"])), x, x if rng.integers(4) == 0 else beside)
        if kind == "gate":
            return g.op("Mul", x, g.op("Softplus", g.op("GlobalAveragePool", y)))
        if kind == "gather":
            axis = int(rng.integers(1, 4))
            return g.op("Gather", x, rng.permutation(4) if rng.integers(2) else rng.integers(0, 4, 4), axis=axis)
        if kind == "gemm":
            weight, options = rng.normal(size=(4, 4)) / 2, {"transB": int(rng.integers(2)), "alpha": 0.5, "beta": 2.0}
            operands = [weight, rng.normal(size=[(), (4,), (1, 4)][rng.integers(3)])][: 1 + rng.integers(2)]
            flat = g.op("Gemm", g.op("Reshape", x, np.array([-1, 4])), *operands, **options)
            return g.op("Reshape", flat, np.array([-1, 4, 4, 4]))
        if kind == "blocks":
            mode = str(rng.choice(["DCR", "CRD"]))
            return g.op("DepthToSpace", g.op("SpaceToDepth", x, blocksize=2), blocksize=2, mode=mode)
        if kind == "tile":
            axis = int(rng.integers(1, 4))
            repeats = np.ones(4, dtype=np.int64)
            repeats[axis] = 2
            return g.op("Tile", g.op("Slice", x, np.array([1]), np.array([3]), np.array([axis])), repeats)
        if kind == "resize":
            axis = int(rng.integers(2, 4))
            scales = np.ones(4, dtype=np.float32)
            scales[axis] = 2
            g.initializers.append(numpy_helper.from_array(scales, f"scales_{len(g.nodes)}"))
            mode = str(rng.choice(["nearest", "linear"]))
            wide = g.op("Resize", x, None, f"scales_{len(g.nodes)}", mode=mode)
            return g.op("Slice", wide, np.array([1]), np.array([8]), np.array([axis]), np.array([2]))
        return g.op(kind, x)


KINDS = [
    "conv", "conv", "conv transpose", "linear", "linear on the left", "norm", "norm", "norm", "Mul", "Add", "scalar",
    "sum", "product", "join", "split", "transpose", "reshape", "pool", "pad", "mean", "Relu", "LeakyRelu", "Identity",
    "Neg", "diamond", "gate", "gather", "gemm", "blocks", "tile", "resize",
]  # fmt: skip


def chains(g):
    """Count the maps of a graph: each BatchNormalization, and each run of arithmetic that nothing else reads."""
    constants = {item.name for item in g.initializers}
    producers = {name: node for node in g.nodes for name in node.output}
    readers = Counter(name for node in g.nodes for name in node.input)
    outputs = {item.name for item in g.outputs}

    def is_map(node):
        if node.op_type == "BatchNormalization":
            return True
        if node.op_type == "Neg":  # a sign counts where it continues a map
            return continues(node)
        if node.op_type not in ("Mul", "Add") or not set(node.input) & constants:
            return False
        data = next(name for name in node.input if name not in constants)
        behind = producers.get(data)
        bias = behind is not None and behind.op_type == "MatMul" and readers[data] == 1 and data not in outputs
        return not (node.op_type == "Add" and bias)

    def continues(node):
        data = next(name for name in node.input if name not in constants)
        behind = producers.get(data)
        alone = readers[data] == 1 and data not in outputs
        return behind is not None and behind.op_type in ("Mul", "Add", "Neg") and alone and is_map(behind)

    count = 0
    for node in g.nodes:
        if is_map(node):
            count += node.op_type == "BatchNormalization" or not continues(node)
    return count


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(KINDS), min_size=3, max_size=14),
       st.sampled_from([np.float64, np.float32]))  # fmt: skip
def test_random_graphs(graph, fold, seed, kinds, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    net = Net(g, rng)
    values = [g.input("x", ["N", 4, 4, 4]), g.input("y", ["N", 4, 4, 4])]
    for kind in kinds:
        # mostly a chain; sometimes a branch from further back
        x = values[-1] if rng.random() < 0.75 else values[rng.integers(len(values))]
        y = values[rng.integers(len(values))]
        values.append(net.step(kind, x, y))
    g.output(values[-1])
    if rng.integers(2) and values[-2] not in ("x", "y"):
        g.output(values[-2])
    result = fold(g).agree_exactly(g.feeds(rng, N=2), 1e-8)
    reachable = needed(g)
    g.nodes = [node for node in g.nodes if set(node.output) & reachable]
    rows = [row for row in result.ledger if row.site[-1] in reachable]
    assert len(rows) == chains(g), [(row.site, row.action, row.reason) for row in result.ledger]


def needed(g):
    """Return the names that the outputs depend on."""
    found = {item.name for item in g.outputs}
    for node in reversed(g.nodes):
        if set(node.output) & found:
            found |= set(node.input)
    return found
