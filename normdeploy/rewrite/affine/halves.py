"""Half a map: where a whole one has to stay, its scale or its shift alone may still go.

s x + t is a scale and then a shift, or the shift t / s and then the scale: s (x + t / s). Either half can go either way
while the other stays:

- behind: s x is absorbed, and + t stays; or x + t / s is, and the scale stays;
- in front: + t is absorbed, and s x stays; or s (.) is, and x + t / s stays.

Done where the map costs two passes as it is (it varies along another axis than 1, so that no BatchNormalization says it
in one) and what the half adds costs less than the pass that it saves. t / s needs s != 0 everywhere. For values far
from zero (:mod:`.offset`) no shift is absorbed behind, and what centres them in a step of its own stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import storable
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, identity
from normdeploy.rewrite.affine.offset import is_centred, too_far
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal
from normdeploy.rewrite.affine.table import TABLE


@dataclass(frozen=True)
class Half:
    """A plan for one half of a map.

    Args:
        plan: who takes it.
        rest: the half that stays.
        name: "scale" or "shift", whichever goes.
    """

    plan: BackwardPlan | ForwardPlan
    rest: AffineMap
    name: str


def best_half(graph: ir.Graph, node: ir.Node, mapping: AffineMap) -> Half | None:
    """Return the half of an Affine's map that is absorbed at the least cost; None where none saves anything."""
    if is_centred(node) or mapping.no_scale or mapping.no_shift or (mapping.rank > 1 and mapping.axes <= {1}):
        return None
    saved = cost.pass_bytes(node.outputs[0])
    found = [half for half in _halves(graph, node, mapping) if half.plan.cost < saved]
    return min(found, key=lambda half: half.plan.cost, default=None)


def _halves(graph: ir.Graph, node: ir.Node, mapping: AffineMap) -> Iterator[Half]:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    scale, shift = mapping.without_shift(), identity(mapping.rank).with_shift(mapping.shift)
    before = mapping.shift_in_front()
    tries: list[tuple[str, AffineMap, AffineMap | None, bool]] = [
        ("scale", scale, shift, True),
        ("shift", shift, scale, False),
    ]
    if before is not None:
        tries += [("shift", before, scale, True), ("scale", scale, before, False)]
    for name, goes, stays, backward in tries:
        if stays is None or not storable(result.dtype, goes.shift, stays.shift):
            continue
        behind, ahead = Backward(TABLE, graph), Forward(TABLE, graph)
        plan = behind.plan(source, goes, node) if backward else ahead.plan(result, goes)
        if isinstance(plan, ForwardPlan) and not goes.no_shift and too_far(node, plan):
            continue
        if not isinstance(plan, Refusal):
            yield Half(plan, stays, name)
