"""Graphs drawn at random: maps between products of computed values, moves, sums, norms and softmaxes, every value kept.

The networks of :mod:`random_networks` are what people write; these are what they do not: values read many times,
products of a value with its own transposed, splits of splits, outputs in the middle. Sizes are small and coincide.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import random_graph_steps as step
from graph_drawing import BATCH, Drawing, Shape

STEPS: tuple[tuple[Callable[[Drawing], None], int], ...] = (
    (step.affine, 6), (step.linear, 2), (step.convolution, 1), (step.product, 3), (step.attention, 2),
    (step.einsum, 1), (step.transpose, 2), (step.reshape, 2), (step.unsqueeze, 1), (step.expand, 1), (step.two, 5),
    (step.alone, 2), (step.softmax, 1), (step.norm, 1), (step.cut, 1), (step.concat, 1), (step.split, 1),
    (step.reduction, 1), (step.gather, 1),
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
