"""The pass: every rule tried at every node, in graph order, until nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from normdeploy.rewrite.branches import linear
from normdeploy.rewrite.branches.border import fold_border
from normdeploy.rewrite.branches.dead_bias import drop_dead_bias
from normdeploy.rewrite.branches.parallel import merge_parallel
from normdeploy.rewrite.branches.serial import merge_serial
from normdeploy.rewrite.context import RewriteContext

Rule = Callable[[RewriteContext, ir.Graph, ir.Node], bool]
"""Tries one rewrite whose last node is the given one; tells whether the graph changed."""

RULES: tuple[Rule, ...] = (
    merge_parallel,
    merge_serial,
    linear.merge_parallel,
    linear.merge_serial,
    fold_border,
    drop_dead_bias,
)

ROUNDS = 4
"""Nested branches merge from the inside out; each round merges one more level."""


class MergeBranches(ir.passes.InPlacePass):
    """Merge parallel and serial linear branches.

    Args:
        context: takes the ledger rows of the affine maps inside, and checks each merge.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__()
        self.context = context

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Merge in the main graph and in the bodies of control flow."""
        modified = False
        for graph in model.graphs():
            for _ in range(ROUNDS):
                if not self._round(graph):
                    break
                modified = True
        return ir.passes.PassResult(model, modified)

    def _round(self, graph: ir.Graph) -> bool:
        changed = False
        for node in list(graph):
            for rule in RULES:
                if node.graph is graph and rule(self.context, graph, node):
                    changed = True
                    break
        return changed
