"""Mul, and the average that Mul and ReduceSum spell: y = sum_k a_k v_k where the a_k sum to one along the axis.

As an average by rows of a matrix product, it passes the scale of both and any shift of v that is one along the axis:
sum_k a_k (s v'_k + t) = s y' + t. What is in between, a_k v_k, has no shift that is one for all k: it is a part of the
average. Attentive pooling is written like this.

Any other Mul is a product of :mod:`.elementwise`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.graph import is_constant
from normdeploy.graph.edit import only_reader
from normdeploy.graph.summed_axis import summed_axis
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.gauge import Gauge, common
from normdeploy.rewrite.gauge.rules.averages import axes_of
from normdeploy.rewrite.gauge.rules.elementwise import multiply
from normdeploy.rewrite.gauge.ties import Tie, Ties


@dataclass(frozen=True)
class Weighed:
    """An average.

    Args:
        weights, data: which operand of the Mul is which. axis: that is averaged over, counted from the front.
        total: the ReduceSum. rank: of the product.
    """

    weights: int
    data: int
    axis: int
    total: ir.Node
    rank: int


def weighed(node: ir.Node) -> Weighed | None:
    """Return the average that begins with a Mul; None where none does."""
    total = only_reader(node.outputs[0]) if is_standard(node, "Mul") else None
    dims = dims_of(node.outputs[0])
    if total is None or dims is None or total.graph is not node.graph or not is_standard(total, "ReduceSum"):
        return None
    axes = axes_of(total, len(dims)) if total.inputs[0] is node.outputs[0] else None
    if axes is None or len(axes) != 1:
        return None
    for weights, value in enumerate(node.inputs):
        own = None if value is None else dims_of(value)
        axis = summed_axis(value)
        if own is None or axis is None or axis + len(dims) != axes[0] or is_constant(node.inputs[1 - weights]):
            continue
        if own[axis] is not None and own[axis] == dims[axis]:  # repeated along it, they would sum to more
            return Weighed(weights, 1 - weights, axes[0], total, len(dims))
    return None


def tie(node: ir.Node, ties: Ties) -> Gauge | None:
    """Tie a Mul, with the ReduceSum behind it where both are an average."""
    found = weighed(node)
    if found is None:
        return multiply(node, ties)
    weights, data = ties.operand(node, found.weights), ties.operand(node, found.data)
    varies = Tie(node, "averages over the axis along which it varies")
    weights = ties.no_shift(weights, Tie(node, "multiplies two values, which leaves no place for a shift"))
    weights, data = (ties.along(gauge.wider(found.rank), [found.axis], varies) for gauge in (weights, data))
    cells = common(weights, data)
    result = replace(data.spread(cells), scale_of=ties.fresh_scale(cells).scale_of)
    ties.product(result, [(weights.spread(cells), 1.0), (data.spread(cells), 1.0)], Tie(node))
    if not found.total.attributes.get_int("keepdims", 1):
        result = result.each(lambda array: np.squeeze(array, found.axis))
    ties.of[found.total.outputs[0]] = result
    ties.parts[found.total] = node
    return None
