"""Weights of a file that are not the reference's, and that no sample may have met with anything but 0.

A row of a product behind a Relu or a comparison shows nothing of itself where its feature is 0 in every sample. Where
algebra holds weights against the reference's and no rounding explains the difference, another scale may, and samples
judge them: each channel that they read has to be seen at work.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from torch import Tensor

from normdeploy.graph import constant64
from normdeploy.graph.linear_view import Linear, linear_of


def own_weights(nodes: Iterable[ir.Node]) -> dict[str, tuple[int, ...]]:
    """Return the channels that linear operators on floats read with weights other than 0, by the result's name.

    Args:
        nodes: those that hold other numbers than the reference's.
    """
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        linear = linear_of(node)
        if linear is None or linear.data_steps is not None:
            continue
        weight = constant64(linear.value(linear.weight))
        if weight is not None and weight.ndim > 1:
            read = np.broadcast_to(linear.channels(weight.shape).read, weight.shape)
            found[str(node.outputs[0].name)] = tuple(int(c) for c in np.unique(read[weight != 0]))
    return found


def nonzero_channels(linear: Linear, data: Tensor) -> set[int]:
    """Return the channels of what a linear operator reads that hold anything but 0.

    Args:
        linear: the operator. data: what it reads.
    """
    axis = linear.data_axis(data.dim())
    others = [at for at in range(data.dim()) if at != axis]
    met = (data != 0).any(dim=others) if others else data != 0
    return {int(channel) for channel in met.nonzero().reshape(-1)}
