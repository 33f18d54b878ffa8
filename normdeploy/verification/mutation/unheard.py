"""Sites whose numbers reach no output: of a formula that a Where by a constant never takes, or asked for sizes alone.

torch's older exporter writes both formulas of an interpolation and the constant that decides between them, and adds
zeros to find a shape. A file with another number there is the same function: there is nothing to detect.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import Evaluator
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import values_read

UNHEARD = "undetectable and harmless here: no output is computed with its numbers"


def unheard(evaluator: Evaluator) -> set[str]:
    """Return the names of the results on a graph's main level of which no output is computed, or by their sizes alone.

    Args:
        evaluator: of the graph.
    """
    graph = evaluator.graph
    fixed = fixed_nodes(graph).by_constants
    queue = list(graph.outputs)
    seen = set(queue)
    for value in queue:
        node = value.producer()
        if node is None or has(node, Trait.SIZES):
            continue
        read = [v for v in (_chosen(evaluator, node, fixed) or values_read(node)) if v not in seen]
        queue += read
        seen.update(read)
    return {str(value.name) for node in graph for value in node.outputs if value not in seen}


def _chosen(evaluator: Evaluator, node: ir.Node, fixed: set[ir.Node]) -> list[ir.Value]:
    """Return what a Where always takes, where its condition is one constant; nothing of any other operator."""
    condition = node.inputs[0] if is_standard(node, "Where") else None
    if condition is None or not (condition.is_initializer() or condition.producer() in fixed):
        return []
    feeds = dict.fromkeys(evaluator.input_names, np.zeros(0))  # none is read
    answers = evaluator.run(feeds, fetch=[str(condition.name)])[str(condition.name)]
    taken = node.inputs[1 if answers.any() else 2]
    return [taken] if taken is not None and answers.numel() and bool(answers.any() == answers.all()) else []
