"""Pad: what is moved to the border is moved; what is padded with one number must stay one number."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.affine.constant import optional, required
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused
from normdeploy.rewrite.gauge.rules import moves
from normdeploy.rewrite.gauge.rules.weights import require_small
from normdeploy.rewrite.gauge.ties import Tie, Ties


def tie(node: ir.Node, ties: Ties) -> bool:
    """Tie Pad: reflected, repeated and wrapped values are moved ones; one number must stay one number.

    v' = (v - t) / s is one number for all cells where t = 0 and v = 0, or where s and t are one.
    """
    if node.attributes.get_string("mode", "constant") != "constant":
        return moves.follow(node, ties, moves.padded)
    dims = dims_of(required(node, 0))
    gauge = ties.operand(node, 0)
    if dims is None or gauge is None:
        return False
    acts = moves.padded(node, len(dims))
    if not acts.known:
        return ties.refuse(node, "pads by widths that are known at run time only")
    flat = ties.along(gauge, acts.axes, Tie(node, "pads along the axis where it varies"))
    value = optional(node, 2)
    number = np.zeros(1) if value is None else constant64(value)
    if number is None:
        ties.pinned(flat, Tie(node, "pads with what is known at run time only"))
    elif math.prod(flat.cells) > 1:
        mode = ties.pads.get(node)
        if mode == "loose":
            pass  # what is written tells
        elif float(np.asarray(number).reshape(-1)[0]) == 0.0 and mode is None:
            flat = ties.no_shift(flat, Tie(node, "pads with zeros, which a shift would change"))
        else:
            ties.along(flat, range(flat.rank), Tie(node, "pads all channels with one number"))
    ties.of[node.outputs[0]] = flat
    return True


def write(edit: Edit) -> None:
    """Let what is padded with follow: v' = (v - t) / s."""
    node, value = edit.node, optional(edit.node, 2)
    if node.attributes.get_string("mode", "constant") != "constant":
        return
    number = np.zeros(1) if value is None else constant64(value)
    if number is None:
        return
    scale, shift = edit.result()
    old = float(np.asarray(number).reshape(-1)[0])
    new = (old - shift) / scale
    if old == 0 and not shift.any():
        return
    if not (new == new.reshape(-1)[0]).all():
        raise Refused(node, f"{describe(node)} pads all channels with one number, which it sends to several")
    dtype = node.outputs[0].dtype or ir.DataType.FLOAT
    require_small(node, dtype, new)
    name = f"{node.name or node.outputs[0].name}.value" if value is None else str(value.name)
    edit.read(2, edit.constant(lambda: np.array(new.reshape(-1)[0]), (), dtype, name=name, succeeds=value))
