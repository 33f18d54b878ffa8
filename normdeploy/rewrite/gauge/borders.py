"""Values that have to stay what they are: no operator's own check sees them.

An operator that changes is evaluated before and after (:mod:`.edit_check`); one without a rule is not written at all.
What it reads is asked for its gauge, whatever was stated and solved.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from normdeploy.errors import RewriteError
from normdeploy.graph import module_path
from normdeploy.rewrite.affine.replacement import reads_shape_only
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.rewrite_context import TOLERANCE


def require_borders(solution: Solution) -> None:
    """Require s = 1 and t = 0 of all that nothing rewrites.

    These are graph inputs and outputs, what operators without a rule, or not asked, read and write, and what the bodies
    of control flow read.

    Args:
        solution: the gauges.

    Raises:
        RewriteError: a gauge is another one.
    """
    for value, reader in _fixed_values(solution):
        gauge = solution.ties.of.get(value)
        if gauge is None or solution.is_identity(gauge):
            continue
        apart = float(max(np.abs(solution.scale(gauge) - 1).max(), np.abs(solution.shift(gauge)).max()))
        if not apart <= TOLERANCE:
            raise RewriteError(
                f"gauge of {'a graph' if reader is None else reader.op_type}",
                "" if reader is None else module_path(reader),
                f"{value.name} is off by {apart:.3g}; it has to stay what it is",
            )


def _fixed_values(solution: Solution) -> Iterator[tuple[ir.Value, ir.Node | None]]:
    """Yield the values whose gauge has to be the identity, with who reads or writes them; None for the graph."""
    graph, asked = solution.ties.graph, set(solution.ties.nodes)
    for value in solution.ties.of:
        if value.is_graph_input() or value.is_graph_output():
            yield value, None
        for usage in value.uses():
            if usage.node.graph is not graph:
                yield value, usage.node
    for node in graph:
        written = rule_of(node) is not None and node in asked
        if not written and node not in solution.ties.parts and not reads_shape_only(node):
            for read in (*node.inputs, *node.outputs):
                if read is not None:
                    yield read, node
