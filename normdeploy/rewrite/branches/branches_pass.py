"""The pass: every rule tried at every node, in graph order, until nothing changes.

It stands in front of :class:`.MoveAffine` too: branches that merge with their norms leave nothing to be moved, where
each norm would be solved for, written and checked by itself before they merge.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.branches.border import fold_border
from normdeploy.rewrite.branches.dead_bias import drop_dead_bias
from normdeploy.rewrite.branches.merge import explain, merge
from normdeploy.rewrite.branches.tree import is_sum
from normdeploy.rewrite.branches.value_as_maps import Search
from normdeploy.rewrite.rewrite_context import RewriteContext, RewritePass

ROUNDS = 4
"""Nested branches merge from the inside out; each round merges one more level."""


class MergeBranches(RewritePass):
    """Merge parallel and serial linear branches; say in the ledger why others stay apart.

    Args:
        context: takes the ledger rows, and checks each merge.
        maps_go: maps are still to be moved: they cost nothing, only sums merge, and what stays apart may yet merge.
    """

    def __init__(self, context: RewriteContext, *, maps_go: bool = False) -> None:
        super().__init__(context)
        self._maps_go = maps_go

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Merge in the main graph and in the bodies of control flow."""
        modified = False
        for graph in graphs_of(model):
            search = Search(graph, maps_go=self._maps_go)
            for _ in range(ROUNDS):
                if not self._round(graph, search):
                    break
                modified = True
            said: set[ir.Node] = set()
            for node in () if self._maps_go else reversed(list(graph)):  # a sum speaks for what it adds
                explain(self.context, search, node, said)
        return ir.passes.PassResult(model, modified)

    def _round(self, graph: ir.Graph, search: Search) -> bool:
        changed = False
        for node in list(graph):
            if node.graph is not graph:
                continue
            if self._maps_go:
                done = is_sum(node) and merge(self.context, search, node)
            else:
                done = (
                    merge(self.context, search, node)
                    or fold_border(self.context, graph, node)
                    or drop_dead_bias(self.context, graph, node)
                )
            if done:
                search.forget()
                changed = True
        return changed
