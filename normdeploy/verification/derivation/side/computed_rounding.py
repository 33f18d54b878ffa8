"""How far rounding may have moved a constant that a graph computes from stored ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Array
from normdeploy.graph import evaluate_node
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import radius
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def off_by_rounding(side: Side, value: ir.Value, number: Array) -> Array:
    """Return how far rounding may have moved a constant from what it was, through what it is computed by.

    Args:
        side: its graph. value: the constant. number: what it is.
    """
    dtype, node = side.stored_in(value), value.producer()
    if dtype is not None or node is None:
        return radius(number, dtype)
    operands = [None if read is None else side.fixed(read) for read in inputs_of(node)]
    place = 1 if kind(node) == "DequantizeLinear" else 0  # its result is proportional to its scale
    read, part = node.inputs[place], operands[place]
    if read is None or part is None or not (place or has(node, Trait.MOVES)):
        return np.zeros_like(number, np.float64)
    operands[place] = off_by_rounding(side, read, part)
    tensors = [None if array is None else torch.from_numpy(np.array(array)) for array in operands]
    found = evaluate_node(node, tensors, opset_imports=side.imports)
    return np.asarray(np.abs(found[value.index() or 0].numpy()))
