"""Pad: s * pad(x) + t = pad(s x + t), if what is padded is mapped too.

Modes reflect, edge and wrap pad with values of x: always. Mode constant pads with one number v: behind, v' = s v + t
must be the same number for all channels; in front, v' = (v - t) / s must be.

Refused:
- the map varies along a padded axis;
- the mapped constant differs between channels (zero padding and a shift that varies, usually), or s = 0 in front;
- pads, axes or the constant are computed at run time, or the new constant overflows.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import optional, required, storable, string
from normdeploy.rewrite.affine.cross import pass_back, pass_on
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region


def _padded_axes(node: ir.Node, rank: int) -> set[int] | None:
    pads = constant64(optional(node, 1))
    if pads is None:
        return None
    axes = np.arange(rank)
    if optional(node, 3) is not None:
        given = constant64(optional(node, 3))
        if given is None:
            return None
        axes = given.reshape(-1) % rank
    both = pads.reshape(2, -1)
    return {int(axis) for axis, before, after in zip(axes, *both, strict=True) if before or after}


def _refused(node: ir.Node, mapping: AffineMap) -> Refusal | None:
    axes = _padded_axes(node, mapping.rank)
    if axes is None:
        return Refusal(f"how {describe(node)} pads is not known", node)
    if mapping.axes & axes:
        return Refusal(f"it varies along an axis that {describe(node)} pads", node)
    return None


def _constant(node: ir.Node) -> float | None:
    """Return the padded number; None if it is computed."""
    value = optional(node, 2)
    if value is None:
        return 0.0
    found = constant64(value)
    return None if found is None else float(np.asarray(found).reshape(-1)[0])


def _computed(node: ir.Node) -> Refusal:
    return Refusal(f"what {describe(node)} pads with is computed at run time", node)


def _one(node: ir.Node, array: Array) -> float | Refusal:
    """Return the number that all entries are, if it can be stored."""
    flat = array.reshape(-1)
    if not np.isfinite(flat).all() or not (flat == flat[0]).all():
        return Refusal(f"{describe(node)} pads all channels with one number, which it sends to several", node)
    if not storable(node.outputs[0].dtype, flat):
        return Refusal(f"what {describe(node)} pads with would overflow", node)
    return float(flat[0])


def _with_value(region: Region, node: ir.Node, data: ir.Value, number: float) -> ir.Node:
    """Make the Pad of other data, with another constant."""
    inputs: list[ir.Value | None] = [data, *node.inputs[1:]]
    if number != _constant(node):
        while len(inputs) < 3:
            inputs.append(None)
        dtype = data.dtype or ir.DataType.FLOAT
        name = f"{node.name or node.outputs[0].name}.value"
        inputs[2] = region.constant(lambda: np.array(number), (), dtype, name=name, succeeds=optional(node, 2))
    return region.replace(node, inputs)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Map what is padded."""
    refused = _refused(node, mapping)
    if refused is not None:
        return refused
    if string(node, "mode", "constant") != "constant":
        plan = search.into(required(node, 0), mapping, node)
        return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)
    old = _constant(node)
    value = _computed(node) if old is None else _one(node, mapping.scale * old + mapping.shift)
    if isinstance(value, Refusal):
        return value
    inner = search.into(required(node, 0), mapping, node)
    if isinstance(inner, Refusal):
        return inner

    def build(region: Region) -> ir.Value:
        return _with_value(region, node, inner.build(region), value).outputs[index]

    return BackwardPlan(build, (*inner.old, node), inner.into, inner.cost)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Undo the map on what is padded."""
    refused = _refused(node, mapping) if index == 0 else Refusal(f"{describe(node)} reads it as an option", node)
    if refused is not None:
        return refused
    if string(node, "mode", "constant") != "constant":
        plan = search.through(node.outputs[0], mapping)
        return plan if isinstance(plan, Refusal) else pass_on(node, index, plan)
    old = _constant(node)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = _computed(node) if old is None else _one(node, (old - mapping.shift) / mapping.scale)
    if isinstance(value, Refusal):
        return value
    behind = search.through(node.outputs[0], mapping)
    if isinstance(behind, Refusal):
        return behind

    def build(region: Region, raw: ir.Value) -> None:
        behind.build(region, _with_value(region, node, raw, value).outputs[0])

    return ForwardPlan(build, (node, *behind.old), behind.into, behind.cost)
