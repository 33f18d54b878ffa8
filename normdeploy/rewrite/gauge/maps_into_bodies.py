"""A map behind an If goes into both bodies, where both take it: A(if c then f else g) = if c then A f else A g.

The If chooses among results and has one gauge for all of them, which it cannot know: what each body ends in decides. So
a copy of a map that stays directly behind an If is put at the end of each body (of an If there, at the end of its
bodies), and the engine is asked for each body by itself. Only where every copy leaves, the map does; else the copies
are taken back, and the map stays with the reason of the copy that has to.

Needed: the map alone reads the If's result, and what each body writes certainly has its size along the map's axes (one
that broadcasting would widen behind the If is another map).

Maps in front of bodies: :mod:`.captured_maps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import constant64, module_path
from normdeploy.graph.edit import free_name, put_exact, share_names, take_out, take_out_unread, take_place
from normdeploy.graph.operator_inputs import array_of, required
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of, note_holders
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import (
    affine_map,
    is_affine,
    new_affine,
    set_reason,
    settle,
    taken_by,
)
from normdeploy.rewrite.affine.operator_names import describe, readers
from normdeploy.rewrite.gauge.body_copies import answer_for, takers_in
from normdeploy.rewrite.gauge.captured_maps import enter_readers
from normdeploy.rewrite.gauge.remove_maps import MoveAffine
from normdeploy.rewrite.rewrite_context import RewriteContext, RewritePass


@dataclass(frozen=True)
class _End:
    """An output of a body: the body, and the place among its outputs."""

    body: ir.Graph
    at: int

    @property
    def value(self) -> ir.Value:
        return self.body.outputs[self.at]


class EnterBodies(RewritePass):
    """Move maps behind an If into what its bodies end in, and maps that bodies read into what reads them.

    Args:
        context: ledger and check.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__(context)
        self._engine = MoveAffine(context)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Try every map, in every graph."""
        modified = False
        share_names(model)
        note_holders(model)
        for graph in graphs_of(model):
            for node in [node for node in graph if is_affine(node)]:
                modified |= self._enter(node) or enter_readers(self.context, self._engine, node)
        return ir.passes.PassResult(model, modified)

    def _enter(self, node: ir.Node) -> bool:
        source, mapping = required(node, 0), affine_map(node)
        chooser = source.producer()
        if chooser is None or not is_standard(chooser, "If") or chooser.graph is not node.graph:
            return False
        if taken_by(node) or readers(source) != [node] or source.is_graph_output():
            return False
        ends = list(_ends(chooser, list(chooser.outputs).index(source)))
        if not all(_fits(end, mapping) for end in ends):
            return False
        fixed = [end for end in ends if constant64(end.value) is not None]
        copies = {end: _append(end, node, mapping) for end in ends if end not in fixed}
        found = takers_in(self._engine, {end.body: copy for end, copy in copies.items()})
        if isinstance(found, tuple):
            set_reason(node, f"a body of {describe(chooser)} does not take it: {found[1]}")
            for end, copy in copies.items():
                end.body.outputs[end.at] = required(copy, 0)
            take_out(copies.values())
            return False
        for end, copy in copies.items():
            copy.outputs[0].name = free_name(end.body, f"{copy.outputs[0].name}.mapped")
        if copies:  # one row for all copies: the last one's, which names what took them
            answer_for(node, list(copies.values())[-1], found)
        else:
            settle(self.context.ledger, node, "folded", module_path(chooser), "its bodies end in constants")
        for end in fixed:
            _compute(end, mapping)
        self.context.carried.forget([source])  # what the bodies wrote before is computed no more
        self.context.carried.same(source, node.outputs[0])
        take_place(source, node.outputs[0])
        take_out([node])
        for body in dict.fromkeys(end.body for end in ends):
            self._engine.move(body)
        return True


def _ends(chooser: ir.Node, at: int) -> Iterator[_End]:
    """Yield what may become an If's result, through Ifs at the ends of its bodies."""
    for name in ("then_branch", "else_branch"):
        end = _End(chooser.attributes[name].as_graph(), at)
        inner = end.value.producer()
        nested = inner is not None and inner.graph is end.body and is_standard(inner, "If")
        if inner is not None and nested and not end.value.uses() and list(end.body.outputs).count(end.value) == 1:
            yield from _ends(inner, list(inner.outputs).index(end.value))
        else:
            yield end


def _fits(end: _End, mapping: AffineMap) -> bool:
    """Tell whether a map means the same at the end of a body as behind it."""
    value = end.value
    producer = value.producer()
    if producer is None or producer.graph is not end.body or value.shape is None or value.dtype is None:
        return False
    if len(value.shape) != mapping.rank:
        return False
    return all(
        size in (1, own)
        for array in (mapping.scale, mapping.shift)
        for size, own in zip(array.shape, value.shape, strict=True)
    )


def _append(end: _End, node: ir.Node, mapping: AffineMap) -> ir.Node:
    """Put a copy of a map at an end; reasons that are told meanwhile name the end as the user does."""
    value = end.value
    copy = new_affine(end.body, value, mapping, like=node, origins=(), output=value)
    copy.outputs[0].name = value.name  # until it is known that it stays there
    end.body.append(copy)
    end.body.outputs[end.at] = copy.outputs[0]
    return copy


def _compute(end: _End, mapping: AffineMap) -> None:
    """Let an end that is a constant be another one."""
    old, array = end.value, mapping(array_of(end.value))
    assert old.dtype is not None
    new = put_exact(end.body, lambda: array, array.shape, old.dtype, f"{old.name}.mapped")
    made = ir.Node("", "Identity", [new], outputs=[ir.Value(shape=new.shape, type=new.type)])
    end.body.append(made)
    made.outputs[0].name = free_name(end.body, f"{old.name}.mapped")
    end.body.outputs[end.at] = made.outputs[0]
    take_out_unread([old])
