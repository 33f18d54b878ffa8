"""What an input is for, read off the graph: floats that say which keys count."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.traits import Trait, has, is_standard

_FAR = 1e3
"""A mask times so much, or more, leaves nothing of a Softmax's weight."""


def hides_scores(value: ir.Value) -> bool:
    """Tell whether a float is multiplied by a large number, added to scores, and shows in Softmaxes alone.

    So (1 - m) * -10000 hides the keys whose m is 0, as exporters write it: between 0 and 1 such a number means nothing.
    """
    if value.dtype is None or not value.dtype.is_floating_point():
        return False
    queue, met, found = [(value, False)], {(value, False)}, False
    for current, large in queue:
        if current.is_graph_output():
            return False
        for node, index in current.uses():
            if has(node, Trait.SIZES):
                continue
            if is_standard(node, "Softmax"):
                if not large:
                    return False
                found = True
                continue
            factor = _factor(node, index)
            if factor is None:
                return False
            reached = [(output, large or abs(factor) >= _FAR) for output in node.outputs]
            queue += [state for state in reached if state not in met]
            met.update(reached)
    return found


def _factor(node: ir.Node, index: int) -> float | None:
    """Return what an operator multiplies an operand by on its way through; None where it does anything else."""
    if has(node, Trait.ADDS) or (has(node, Trait.MOVES | Trait.CONVERTS) and index == 0):
        return 1.0
    if not is_standard(node, "Mul") or len(node.inputs) != 2:
        return None
    other = node.inputs[1 - index]
    constant = None if other is None else constant64(other)
    return None if constant is None or constant.size != 1 else float(constant.reshape(()))
