"""A map that bodies of Ifs alone read goes into each of them, where each takes it.

What a body reads from around it stays what it is: each body is solved by itself. So a copy of a map whose result no
operator beside it reads is put at the start of every body that reads it, and the engine is asked for each body by
itself. Only where every copy leaves, the map does; else the copies are taken back. A body of a Loop runs more often
than the map does, and what takes a map may be an operator more.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.edit import free_name, take_out
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import holder_of
from normdeploy.rewrite.affine.affine_node import affine_map, new_affine, set_reason, taken_by
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.body_copies import answer_for, takers_in
from normdeploy.rewrite.gauge.remove_maps import MoveAffine
from normdeploy.rewrite.rewrite_context import RewriteContext


def enter_readers(context: RewriteContext, engine: MoveAffine, node: ir.Node) -> bool:
    """Move a map into the bodies that read it; tell whether all of them took it.

    Args:
        context: gets what becomes of the map's result.
        engine: is asked for each body.
        node: the map.
    """
    result = node.outputs[0]
    uses = list(result.uses())
    bodies = list(dict.fromkeys(usage.node.graph for usage in uses))
    if not bodies or taken_by(node) or result.is_graph_output():
        return False
    copies: dict[ir.Graph, ir.Node] = {}
    if not all(_runs_once(body, node.graph) for body in bodies):
        return False
    for body in bodies:
        assert isinstance(body, ir.Graph)
        copy = new_affine(body, required(node, 0), affine_map(node), like=node, origins=(), output=result)
        copy.outputs[0].name = free_name(body, f"{result.name}.inside")
        body.insert_before(body[0], copy)
        copies[body] = copy
    for usage in uses:
        assert isinstance(usage.node.graph, ir.Graph)
        usage.node.replace_input_with(usage.idx, copies[usage.node.graph].outputs[0])
    found = takers_in(engine, copies)
    if isinstance(found, tuple):
        body, reason = found
        holder = holder_of(body)
        assert holder is not None  # it runs once
        set_reason(node, f"a body of {describe(holder)} that reads it does not take it: {reason}")
        for usage in uses:
            usage.node.replace_input_with(usage.idx, result)
        take_out(copies.values())
        return False
    answer_for(node, list(copies.values())[-1], found)
    context.carried.forget([result])
    take_out([node])
    for body in copies:
        engine.move(body)
    return True


def _runs_once(body: ir.Graph | ir.Function | None, around: ir.Graph | ir.Function | None) -> bool:
    """Tell whether a graph is a body of an If, or of an If in one, within another graph."""
    while isinstance(body, ir.Graph) and body is not around:
        holder = holder_of(body)
        if holder is None or not is_standard(holder, "If"):
            return False
        body = holder.graph
        if body is around:
            return True
    return False
