"""Write the affine maps that nothing absorbed in the cheapest form that is faithful.

1. The identity: nothing (an Identity where it is a graph output).
2. A map that was never moved or composed: as its author wrote it, unless form 3 needs fewer operators and its inputs
   are not far from zero (:mod:`normdeploy.rewrite.affine.far_from_zero`).
3. t = 0: one Mul. s = 1: one Add. Along axis 1 of static size, float32 or float64: one BatchNormalization with mean 0,
   variance 1, epsilon 0, so y = s * x + t in one pass. Otherwise Mul and Add.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.edit import put_exact, standing_for, take_out, take_place
from normdeploy.graph.exact import tensor64
from normdeploy.graph.walk import graphs_of, nodes_of
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import (
    Step,
    affine_map,
    is_affine,
    origins_of,
    reason_of,
    settle,
    written_of,
)
from normdeploy.rewrite.affine.far_from_zero import is_centred
from normdeploy.rewrite.affine.operators_of_map import fits_batch_norm, passes
from normdeploy.rewrite.rewrite_context import RewritePass

_UNTRIED = "nothing was asked to absorb it"


class LowerAffine(RewritePass):
    """Replace each Affine by standard operators and settle its ledger rows as kept.

    Args:
        context: takes the rows.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Lower every Affine of the model."""
        modified = False
        for graph in graphs_of(model):
            for node in [node for node in graph if is_affine(node)]:
                self._lower(graph, node)
                modified = True
        return ir.passes.PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """Nothing internal is left."""
        for node in nodes_of(model):
            if is_affine(node):
                raise ir.passes.PostconditionError(f"Affine {node.name!r} was not lowered")

    def _lower(self, graph: ir.Graph, node: ir.Node) -> None:
        mapping, written = affine_map(node), written_of(node)
        reason = reason_of(node) or _UNTRIED
        if mapping.no_scale and mapping.no_shift:
            settle(self.context.ledger, node, "folded", reason="it changes nothing")
            source = node.inputs[0]
            assert source is not None
            ends = node.outputs[0].is_graph_output()
            _replace(node, _new(graph, node, "Identity", [source]) if ends else source)
            return
        for origin in origins_of(node)[:1]:
            node.metadata_props.setdefault("normdeploy.where", origin.where)
        settle(self.context.ledger, node, "kept", reason=reason)
        if written and (len(written) <= passes(node, mapping) or is_centred(node)):
            _replace(node, _as_written(graph, node, written))
        elif fits_batch_norm(node, mapping):
            _replace(node, _batch_norm(graph, node, mapping))
        else:
            _replace(node, _arithmetic(graph, node, mapping))


def _new(graph: ir.Graph, node: ir.Node, op_type: str, inputs: list[ir.Value | None], **attributes: float) -> ir.Value:
    made = standing_for(node, op_type, inputs, [ir.AttrFloat32(name, value) for name, value in attributes.items()])
    graph.insert_before(node, made)
    return made.outputs[0]


def _as_written(graph: ir.Graph, node: ir.Node, written: tuple[Step, ...]) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    for step in written:
        made = ir.Node(
            "",
            step.op_type,
            [value if item is None else _there(graph, item) for item in step.inputs],
            list(step.attributes),
            outputs=[ir.Value(shape=node.outputs[0].shape, type=node.outputs[0].type)],
            name=step.name,
            metadata_props=dict(step.metadata) | {"normdeploy.where": node.metadata_props["normdeploy.where"]},
        )
        graph.insert_before(node, made)
        value = made.outputs[0]
    return value


def _there(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return a constant of a map's author; anew where it left the graph because what else read it changed."""
    tensor = value.const_value
    if value.graph is not None or tensor is None:
        return value
    shape, dtype = tuple(tensor.shape.numpy()), tensor.dtype
    return put_exact(graph, partial(tensor64, tensor), shape, dtype, str(value.name))


def _batch_norm(graph: ir.Graph, node: ir.Node, mapping: AffineMap) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    assert x.dtype is not None
    assert x.shape is not None
    size = int(x.shape[1])  # type: ignore[arg-type] # static: asked before
    vectors = {"scale": mapping.scale, "bias": mapping.shift, "mean": np.zeros(1), "variance": np.ones(1)}
    stem = node.name or node.outputs[0].name or "affine"
    constants: list[ir.Value | None] = [
        put_exact(graph, partial(_spread, array, size), (size,), x.dtype, f"{stem}.{name}")
        for name, array in vectors.items()
    ]
    return _new(graph, node, "BatchNormalization", [x, *constants], epsilon=0.0)


def _spread(array: Floats, size: int) -> Floats:
    return np.array(np.broadcast_to(array.reshape(-1), (size,)))


def _arithmetic(graph: ir.Graph, node: ir.Node, mapping: AffineMap) -> ir.Value:
    value, scale, shift = node.inputs
    assert value is not None
    if not mapping.no_scale:
        value = _new(graph, node, "Mul", [value, scale])
    if not mapping.no_shift:
        value = _new(graph, node, "Add", [value, shift])
    return value


def _replace(node: ir.Node, value: ir.Value) -> None:
    take_place(value, node.outputs[0], named=value is not node.inputs[0])
    take_out([node])
