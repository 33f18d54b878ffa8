"""Move every affine map to where it costs nothing: plan both ways, commit the cheaper, or say why neither goes.

For each Affine node, in graph order: ask everything in front of it (:class:`Backward`), then everything behind it
(:class:`Forward`), and where neither is free, whether the shift goes to the front and the scale behind
(:mod:`.both_ways`). A plan is committed if it costs less than the pass it removes. Each commit removes an Affine node,
so the number of maps falls and the pass ends; or, where the whole has to stay, it takes one half of the map away
(:mod:`.halves`), which happens once. A map that was composed with another is asked again; after a round with changes
the rest is asked once more, because a reader that blocked a value may be gone.
"""

from __future__ import annotations

from collections import deque

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import module_path
from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.both_ways import BothWays, both_ways
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.halves import Half, best_half
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.naming import readers
from normdeploy.rewrite.affine.node import (
    adopt_origins,
    affine_map,
    is_affine,
    new_affine,
    origins_of,
    reason_of,
    set_reason,
    set_taken,
    settle,
)
from normdeploy.rewrite.affine.offset import too_far
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.table import TABLE
from normdeploy.rewrite.context import RewriteContext

ROUNDS = 4
"""Rounds over the maps that are left; the second rarely finds any."""


class MoveAffine(ir.passes.InPlacePass):
    """Absorb Affine nodes into the operators around them.

    Args:
        context: ledger and check.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__()
        self.context = context

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Move what can be moved, in every graph of the model."""
        modified = False
        for graph in model.graphs():
            for _ in range(ROUNDS):
                if not self._round(graph):
                    break
                modified = True
        return ir.passes.PassResult(model, modified)

    def _round(self, graph: ir.Graph) -> bool:
        queue = deque(node for node in graph if is_affine(node))
        changed = False
        while queue:
            node = queue.popleft()
            if node.graph is not graph:
                continue  # composed into another meanwhile
            carriers = self._move(graph, node)
            if carriers is not None:
                changed = True
                queue.extend(carriers)
        return changed

    def _move(self, graph: ir.Graph, node: ir.Node) -> list[ir.Node] | None:
        """Move one map; return the Affine nodes it was composed into, or None if it stays."""
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        mapping = affine_map(node)
        if mapping.no_scale and mapping.no_shift:
            return None  # lowering drops it
        saved = cost.pass_bytes(result)
        back = self._backward(graph, node, source, mapping)
        if isinstance(back, BackwardPlan) and back.cost == 0:
            return self._commit(graph, node, back)
        ahead = Forward(TABLE, graph).plan(result, mapping)
        if isinstance(ahead, ForwardPlan):
            ahead = too_far(node, ahead) or ahead
        options = [plan for plan in (back, ahead) if not isinstance(plan, Refusal)]
        best = min(options, key=lambda plan: plan.cost, default=None)
        limit = saved if best is None else min(saved, best.cost)
        apart = both_ways(graph, node, mapping, limit) if limit > 0 else None
        carriers = None if apart is None else self._commit(graph, node, apart)
        if carriers is not None:
            return carriers
        if best is not None and best.cost < saved:
            return self._commit(graph, node, best)
        if isinstance(back, Refusal) and isinstance(ahead, Refusal):
            set_reason(node, f"{ahead.reason}; {back.reason}")
        else:
            set_reason(node, "absorbing it would copy or compute more than the pass over its tensor that it saves")
        half = best_half(graph, node, mapping)
        return None if half is None else self._commit_half(graph, node, half)

    def _backward(self, graph: ir.Graph, node: ir.Node, source: ir.Value, mapping: AffineMap) -> BackwardPlan | Refusal:
        """Search for one reader at a time; where a shared value was in the way, for all its readers at once."""
        search = Backward(TABLE, graph)
        found = search.plan(source, mapping, node)
        if isinstance(found, Refusal) and search.met_shared and len(readers(source)) == 1:
            together = Backward(TABLE, graph, joint=True).plan(source, mapping, node)
            return found if isinstance(together, Refusal) else together
        return found

    def _commit_half(self, graph: ir.Graph, node: ir.Node, half: Half) -> list[ir.Node] | None:
        """Move one half of a map; the other stays in an Affine that answers for the row."""
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        region = Region(graph)

        def rest_of(x: ir.Value) -> ir.Node:
            rest = new_affine(graph, x, half.rest, like=node, origins=origins_of(node))
            return region.adopt(rest, after=node)

        if isinstance(half.plan, BackwardPlan):
            region.before = [*half.plan.old, node]
            rest = rest_of(half.plan.build(region))
            region.same(result, rest.outputs[0])
        else:
            region.before = [node, *half.plan.old]
            rest = rest_of(source)
            half.plan.build(region, rest.outputs[0])
        takers = ", ".join(dict.fromkeys(module_path(taker) for taker in half.plan.into))
        try:
            region.commit(self.context, f"{half.name} of an affine map", module_path(node))
        except GraphError:
            region.discard()
            return None
        set_taken(rest, f"its {half.name} went into {takers}")
        set_reason(rest, reason_of(node))
        return []

    def _commit(
        self, graph: ir.Graph, node: ir.Node, plan: BackwardPlan | ForwardPlan | BothWays
    ) -> list[ir.Node] | None:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        region = Region(graph)
        if isinstance(plan, BackwardPlan):
            region.before = [*plan.old, node]
            region.same(result, plan.build(region))
            direction, into = "backward", plan.takers
        elif isinstance(plan, ForwardPlan):
            region.before = [node, *plan.old]
            plan.build(region, source)
            direction, into = "forward", plan.into
        else:
            region.before = [*plan.behind.old, node, *plan.ahead.old]
            plan.ahead.build(region, plan.behind.build(region))
            direction, into = "both ways", (*plan.behind.into, *plan.ahead.into)
        names = ", ".join(dict.fromkeys(module_path(taker) for taker in into))
        rule = f"affine {direction} into {', '.join(dict.fromkeys(taker.op_type for taker in into)) or 'nothing'}"
        site = module_path(node)
        only_affine = all(is_affine(taker) for taker in into)
        carriers = [new for new in region.after if is_affine(new)]
        try:
            region.commit(self.context, rule, site)
        except GraphError as error:
            region.discard()
            set_reason(node, f"the rewrite could not be checked on random inputs ({error})")
            return None
        if only_affine and carriers:
            adopt_origins(carriers[0], origins_of(node))
        else:
            settle(self.context.ledger, node, "folded", names)
        return carriers
