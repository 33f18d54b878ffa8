"""The pass: every rule tried at every node, in graph order, until nothing changes."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.branches.border import fold_border
from normdeploy.rewrite.branches.dead_bias import drop_dead_bias
from normdeploy.rewrite.branches.merge import explain, merge
from normdeploy.rewrite.branches.value_as_maps import Search
from normdeploy.rewrite.rewrite_context import RewritePass

ROUNDS = 4
"""Nested branches merge from the inside out; each round merges one more level."""


class MergeBranches(RewritePass):
    """Merge parallel and serial linear branches; say in the ledger why others stay apart.

    Args:
        context: takes the ledger rows, and checks each merge.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Merge in the main graph and in the bodies of control flow."""
        modified = False
        for graph in graphs_of(model):
            search = Search(graph)
            for _ in range(ROUNDS):
                if not self._round(graph, search):
                    break
                modified = True
            said: set[ir.Node] = set()
            for node in reversed(list(graph)):  # a sum speaks for what it adds
                explain(self.context, search, node, said)
        return ir.passes.PassResult(model, modified)

    def _round(self, graph: ir.Graph, search: Search) -> bool:
        changed = False
        for node in list(graph):
            if node.graph is not graph:
                continue
            if (
                merge(self.context, search, node)
                or fold_border(self.context, graph, node)
                or drop_dead_bias(self.context, graph, node)
            ):
                search.forget()
                changed = True
        return changed
