r"""Scale and shift of a normalization, moved into the linear layers behind it, before quantization.

For n the normalized values, and linear layers that alone read g n + b::

    (g n + b) W + c  =  n (diag(g) W) + (b W + c)

That is a choice of gauges (:mod:`normdeploy.rewrite.gauge.regauge`): the norm's result is computed as n, with s = g and
t = b, where everything behind it allows that.

In float32 nothing is gained: LayerNormalization applies g and b on the way. Between float32 and 8 bits OpenVINO runs
them as an operator of their own, and the 8-bit step of g n + b has to serve channels of different ranges; n has one
range for all channels, and a weight has a step per output.

Source: Wei et al., Outlier Suppression, 2022, section 4.1 (the scale goes to where it does not widen activations).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.edit import drop_if_unread
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.gauge.free_choices import choose
from normdeploy.rewrite.gauge.gauge import fixed
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.regauge import regauge
from normdeploy.rewrite.gauge.ties import Tie, Ties
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.rewrite_context import RewriteContext


def move_affines(model: ir.Model) -> int:
    """Move the scale and shift of every normalization that only linear layers read into these, in place.

    Args:
        model: weights with it.

    Returns:
        How many normalizations became plain.
    """
    infer_missing_types(model)
    norms = [node for node in model.graph if is_standard(node, "LayerNormalization", "RMSNormalization")]
    edits = regauge(RewriteContext(), model.graph, lambda ties: _plain(ties, norms))
    changed = {edit.node for edit in edits}
    for node in norms:
        shift = optional(node, 2)
        numbers = None if shift is None or node not in changed else constant64(shift)
        if shift is not None and numbers is not None and not numbers.any():
            node.resize_inputs(2)
            drop_if_unread(shift)
    return sum(node in changed for node in norms)


def _plain(ties: Ties, norms: Sequence[ir.Node]) -> Solution:
    """Ask each norm to be plain: to write n, with s and t its scale and shift."""
    for node in norms:
        gauge, scale, shift = ties.of.get(node.outputs[0]), constant64(optional(node, 1)), constant64(optional(node, 2))
        if gauge is None or scale is None or scale.ndim != 1 or not scale.all():
            continue  # what a scale of 0 hides cannot be taken back
        neutral = fixed(gauge.rank)
        marks = [(system, system.mark()) for system in (ties.scales, ties.shifts)]
        conflict = ties.scales.add(ties.scale_rows(gauge, neutral, scale), Tie(node))
        if conflict is None and shift is not None:
            conflict = ties.shifts.add(ties.shift_rows(gauge, neutral, scale, shift), Tie(node))
        for system, mark in marks if conflict is not None else ():
            system.rollback(mark)
    return choose(ties)
