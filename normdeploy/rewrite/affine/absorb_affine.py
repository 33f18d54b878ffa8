"""An affine map absorbs its neighbour: (s2, t2) after (s1, t1) is (s2 s1, s2 t1 + t2).

Legal where the numbers can be stored. Not done behind a map that centres values far from zero in a step of its own: one
step would round more (see :mod:`.offset`). The node that remains answers for the ledger rows of both.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import storable
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.node import affine_map, new_affine, origins_of
from normdeploy.rewrite.affine.offset import is_centred, offset_in
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb the map behind."""
    del index, search
    if is_centred(node):
        return Refusal(
            f"{describe(node)} in front of it removes an offset {offset_in(node):.2g} times the size of its results: "
            "in one step with it that would lose precision",
            node,
        )
    composed = affine_map(node).then(mapping)
    if not storable(node.outputs[0].dtype, composed.scale, composed.shift):
        return Refusal("their composition overflows", node)

    def build(region: Region) -> ir.Value:
        source = node.inputs[0]
        assert source is not None
        new = new_affine(region.graph, source, composed, like=node, origins=origins_of(node))
        return region.adopt(new, after=node, stands_for=node).outputs[0]

    return BackwardPlan(build, (node,), (node,))


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb the map in front."""
    del index, search
    composed = mapping.then(affine_map(node))
    if not storable(node.outputs[0].dtype, composed.scale, composed.shift):
        return Refusal("their composition overflows", node)

    def build(region: Region, raw: ir.Value) -> None:
        new = new_affine(region.graph, raw, composed, like=node, origins=origins_of(node))
        region.same(node.outputs[0], region.adopt(new, after=node, stands_for=node).outputs[0])

    return ForwardPlan(build, (node,), (node,))
