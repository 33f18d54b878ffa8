"""Softmax and LogSoftmax do not see a shift that is one number for all that they compare; a scale they do see.

The rows that Softmax writes sum to one: what averages by them (attention's values) passes any shift on
(:func:`normdeploy.graph.summed_axis.summed_axis`).
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.rewrite.gauge.gauge import Gauge, fixed
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Softmax, LogSoftmax."""
    gauge = ties.operand(node, 0)
    if gauge.rank == 0:
        raise Unfollowed
    gauge = ties.no_scale(gauge, Tie(node, "sees every scale"))
    ties.along_shift(
        gauge, [node.attributes.get_int("axis", -1)], Tie(node, "compares values along the axis where it varies")
    )
    return fixed(gauge.rank)
