"""Turn every spelling of a channel-wise affine map into one internal Affine node.

A chain of constant arithmetic that belongs to one module (or, outside torch, any chain) is one map with one ledger row;
each BatchNormalization is its own. The constant Add behind a product is the product's bias, no map of its own. Scalars
inside a spelled-out activation (see :mod:`.activation`) belong to the activation.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from normdeploy.graph import WHERE, is_constant, module_path
from normdeploy.graph.edit import only_reader, share_names, take_out, take_place
from normdeploy.graph.scopes import NAME_SCOPES, scopes_of
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine import activation
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import (
    Origin,
    Step,
    affine_map,
    is_affine,
    new_affine,
    origins_of,
    written_of,
)
from normdeploy.rewrite.affine.affine_operators import AFFINE_KIND, BATCH_NORM, Match, NoMatch, match
from normdeploy.rewrite.affine.constant import storable
from normdeploy.rewrite.affine.formulas_of_integers import REASON, formulas_of_integers
from normdeploy.rewrite.affine.guard import guarded_beside
from normdeploy.rewrite.rewrite_context import GUARD, OWN_AFFINE, STATISTIC, RewriteContext, RewritePass


class RecogniseAffine(RewritePass):
    """Replace affine maps by Affine nodes; give what must stay its ledger row.

    Args:
        context: takes the ledger rows.
        norms: convert BatchNormalizations as well, not only what is spelled out.
    """

    def __init__(self, context: RewriteContext, *, norms: bool = True) -> None:
        super().__init__(context)
        self._norms = norms

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph of the model once."""
        modified = False
        share_names(model)
        settled = {name for row in self.context.ledger for name in row.site}
        for graph in graphs_of(model):
            skip, counted = activation.parts(graph), formulas_of_integers(graph)
            for node in list(graph):
                if node in skip or is_bias(node) or STATISTIC in node.metadata_props:
                    continue
                found = match(node) if self._norms or not is_standard(node, BATCH_NORM) else None
                if found is None:
                    continue
                if node in counted:
                    found = NoMatch(found.kind, REASON)
                if isinstance(found, NoMatch):
                    site = tuple(str(output.name) for output in node.outputs[:1])
                    if settled.intersection(site):
                        continue  # an earlier pass accounted for it
                    self.context.ledger.add(
                        Origin(module_path(node), found.kind, site).row("kept", reason=found.reason)
                    )
                    continue
                modified |= not self._guards(node, found) and self._convert(graph, node, found)
        return ir.passes.PassResult(model, modified)

    def _guards(self, node: ir.Node, found: Match) -> bool:
        """Mark an addition that has to stay apart from the map in front of it, and say so."""
        beside = guarded_beside(found.x, found.mapping) if found.kind == AFFINE_KIND else None
        if beside is None:
            return False
        node.metadata_props[GUARD] = "1"
        reason = (
            f"it adds {abs(found.mapping.shift.item()):.3g} where {beside:.3g} was added before: the sum of both is "
            f"stored as {beside:.3g}, and what keeps the result from being 0 would be lost"
        )
        site = tuple(str(output.name) for output in node.outputs)
        self.context.ledger.add(Origin(module_path(node), found.kind, site).row("kept", reason=reason))
        return True

    def _convert(self, graph: ir.Graph, node: ir.Node, found: Match) -> bool:
        previous = found.x.producer()
        if (
            previous is not None
            and is_affine(previous)
            and previous.graph is graph
            and self._continues(previous, node, found)
        ):
            if found.kind == AFFINE_KIND:
                self._extend(graph, previous, node, found.mapping, found.x)
                return True
        elif node.op_type == "Neg":
            return False  # a sign on its own (rotary embeddings) is no normalization
        own = OWN_AFFINE in node.metadata_props
        origin = Origin(module_path(node), found.kind, (str(node.outputs[0].name),), found.detail, part=own)
        affine = new_affine(graph, found.x, found.mapping, like=node, origins=(origin,), written=(step(node, found.x),))
        affine.metadata_props[WHERE] = origin.where
        _swap(graph, node, affine)
        return True

    def _continues(self, previous: ir.Node, node: ir.Node, found: Match) -> bool:
        result = previous.outputs[0]
        alone = only_reader(result) is not None
        composed = affine_map(previous).then(found.mapping)
        if not storable(result.dtype, composed.scale, composed.shift):
            return False
        return alone and origins_of(previous)[0].kind == AFFINE_KIND and _scope(previous) == _scope(node)

    def _extend(self, graph: ir.Graph, previous: ir.Node, node: ir.Node, mapping: AffineMap, x: ir.Value) -> None:
        composed = affine_map(previous).then(mapping)
        origin = replace(origins_of(previous)[0], site=(str(node.outputs[0].name),))
        source = previous.inputs[0]
        assert source is not None
        written = (*written_of(previous), step(node, x))
        affine = new_affine(graph, source, composed, like=node, origins=(origin,), written=written)
        affine.metadata_props[WHERE] = origin.where
        _swap(graph, node, affine)
        take_out([previous])


def is_bias(node: ir.Node) -> bool:
    """Tell whether a node is the bias Add of a product by a constant: part of a Linear, no affine map of its own.

    The constant may be stored in integers.
    """
    if not is_standard(node, "Add") or len(node.inputs) != 2:
        return False
    for value, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        producer = None if value is None else value.producer()
        if (
            producer is not None
            and is_standard(producer, "MatMul", "Einsum")
            and value is not None
            and only_reader(value) is not None
            and is_constant(other)
            and any(fixed_weight(operand) is not None for operand in producer.inputs)
        ):
            return True
    return False


def step(node: ir.Node, x: ir.Value) -> Step:
    """Return a node as lowering can write it again, with ``None`` in the place of x."""
    return Step(
        node.op_type,
        tuple(None if value is x else value for value in node.inputs),
        tuple(node.attributes.values()),
        node.name,
        tuple(node.metadata_props.items()),
    )


def _swap(graph: ir.Graph, node: ir.Node, affine: ir.Node) -> None:
    """Put ``affine`` in the place of ``node``; its result takes the name."""
    graph.insert_after(node, affine)
    take_place(affine.outputs[0], node.outputs[0])
    graph.remove(node, safe=True)


def _scope(node: ir.Node) -> tuple[str, ...] | None:
    """Return the modules a node was traced from, outermost first; None outside torch."""
    scopes = node.metadata_props.get(NAME_SCOPES)
    return None if not scopes else scopes_of(scopes)[:-1]
