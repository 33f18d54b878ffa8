"""Gauges that nothing determines, chosen: a graph without affine maps still computes the same under many of them.

What the engine makes maps disappear with is there without maps, too: every value may be computed as x' with
x = s x' + t, and operators say which (s, t) they allow. Here a caller asks for gauges of its own: that a normalization
become plain, that neighbouring layers share their ranges. What is asked is stated like a map that shall go, and taken
back where it contradicts what operators need.

An operator that cannot be rewritten without a second copy of a constant is left as it is, and so are the values around
it: a deployed file does not grow.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.rewrite.gauge.checks.edit_check import Check, checks_of, require_borders
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.gauge.problems import written_operators
from normdeploy.rewrite.gauge.stated_ties import build
from normdeploy.rewrite.gauge.ties import Ties
from normdeploy.rewrite.rewrite_context import RewriteContext

Choice = Callable[[Ties], Solution]
"""States what it wants, and gives every unknown that is left a value."""


def regauge(context: RewriteContext, graph: ir.Graph, choice: Choice) -> list[Edit]:
    """Compute a graph's values in gauges of one's own choice.

    Args:
        context: draws what the operators are checked on.
        graph: types and shapes inferred; changed in place.
        choice: what is wanted. It is asked again where an operator could not be rewritten, with that one left alone.

    Returns:
        the changes that were made, none where nothing changed.

    Raises:
        RewriteError: an operator computes something else in its new gauge.
    """
    graph.sort()
    left = {node for node in graph if _shares_constants(node)}
    while True:
        solution = choice(build(graph, left))
        edits, refused = written_operators(solution)
        problems = {refusal.node for refusal in refused} | {edit.node for edit in edits if edit.cost > 0}
        checks: list[Check] = []
        if not problems:
            checks, problems = checks_of(context, edits)
        if not problems:
            break
        left |= problems
    require_borders(solution)
    for edit in edits:
        edit.apply()
    for check in checks:
        check.verify()
    for edit in edits:
        edit.tidy()
    return edits


def _shares_constants(node: ir.Node) -> bool:
    """Tell whether an operator computes with a float constant that another one reads, or a body."""
    for value in node.inputs:
        tensor = constant_tensor(value)
        if value is not None and tensor is not None and tensor.dtype in FLOATS:
            uses = value.uses()
            if len(uses) > 1 or any(usage.node.graph is not node.graph for usage in uses):
                return True
    return False
