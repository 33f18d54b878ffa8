"""Signs: Sign, and Greater, GreaterOrEqual, Less, LessOrEqual against zeros. They tell the same of s x as of x, s > 0.

Against any other number a decision would be taken at c / s rounded anew, and values that are equal to c fall to either
side: a step of 0.1 that counts to 0.3 would.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.gauge.gauge import Gauge, fixed
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed


def tie(node: ir.Node, ties: Ties) -> Gauge | None:
    """Tie Sign, and comparisons with 0: a result that is true or false has no gauge."""
    gauge = ties.operand(node, _computed(node))
    gauge = ties.no_shift(gauge, Tie(node, "tells on which side of 0 it is, which a shift would change"))
    ties.positive(gauge, Tie(node, "tells on which side of 0 it is, and needs a scale above 0"))
    return fixed(gauge.rank) if is_standard(node, "Sign") else None


def _computed(node: ir.Node) -> int:
    """Return which operand is not the zeros that the other is compared with."""
    if is_standard(node, "Sign"):
        return 0
    operands = [None if value is None else constant64(value) for value in node.inputs]
    computed = [index for index, numbers in enumerate(operands) if numbers is None]
    if len(computed) != 1:
        raise Unfollowed("compares what is computed with what is computed")
    zeros = operands[1 - computed[0]]
    if zeros is None or zeros.any():
        raise Unfollowed("compares with a number other than 0, which would have to be rounded anew")
    return computed[0]
