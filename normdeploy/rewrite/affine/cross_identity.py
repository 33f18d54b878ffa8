"""Operators that change nothing, or only the stored type: Identity, Dropout in evaluation, Cast between floats.

Also those that look at the shape only, which no map changes: Shape, Size.

Refused:
- Dropout whose training flag is set or computed;
- a Cast to or from something that is no float;
- a Cast whose other side stores fewer bits of mantissa or exponent: the map would be computed and rounded there, where
  it was meant to be computed on this side.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import optional, required
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region

_MANTISSA_EXPONENT = {
    ir.DataType.BFLOAT16: (8, 8),
    ir.DataType.FLOAT16: (11, 5),
    ir.DataType.FLOAT: (24, 8),
    ir.DataType.DOUBLE: (53, 11),
}


def _refused(node: ir.Node, here: ir.Value, there: ir.Value) -> Refusal | None:
    """Return why the map may not move from beside ``here`` to beside ``there``."""
    if node.op_type == "Dropout":
        flag = optional(node, 2)
        training = None if flag is None else constant64(flag)
        if flag is not None and (training is None or bool(training)):
            return Refusal(f"{describe(node)} drops at random (training mode)", node)
    if node.op_type == "Cast":
        ours = None if here.dtype is None else _MANTISSA_EXPONENT.get(here.dtype)
        theirs = None if there.dtype is None else _MANTISSA_EXPONENT.get(there.dtype)
        if ours is None or theirs is None:
            return Refusal(f"{describe(node)} converts to or from something that is no float", node)
        if theirs[0] < ours[0] or theirs[1] < ours[1]:
            return Refusal(f"the other side of {describe(node)} holds fewer digits", node)
    return None


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Pass the map as it is."""
    source = required(node, 0)
    assert index == 0  # the mask of a Dropout holds booleans
    refused = _refused(node, node.outputs[0], source)
    if refused is not None:
        return refused
    plan = search.into(source, mapping, node)
    return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)


def shape_forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Let Shape and Size look at the raw value: its shape is the same."""
    del index, mapping, search

    def build(region: Region, raw: ir.Value) -> None:
        region.same(node.outputs[0], region.replace(node, [raw]).outputs[0])

    return ForwardPlan(build, (node,))


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Pass the map as it is."""
    refused = _refused(node, required(node, 0), node.outputs[0])
    if refused is not None:
        return refused
    assert index == 0  # the ratio of a Dropout is a number, which no map has
    plan = search.through(node.outputs[0], mapping)
    return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
