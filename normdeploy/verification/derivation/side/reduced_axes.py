"""The axes that a reduction takes together, however they are written."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of


def reduced(side: Side, node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes that a reduction takes together; None where they are not known."""
    inputs = inputs_of(node)
    given = node.attributes.get_ints("axes", None)
    if given is None and len(inputs) > 1:
        array = side.constant(inputs[1])
        if array is None:
            return None
        given = [int(axis) for axis in array.reshape(-1)]
    if not given:
        return () if node.attributes.get_int("noop_with_empty_axes", 0) != 0 else tuple(range(rank))
    return tuple(sorted(axis_of(axis, rank) for axis in given))
