"""What onnxruntime's kernels are known to compute badly, so that a verdict can blame the runtime by name."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.traits import is_standard

_ONE_PASS = frozenset({"GroupNormalization"})
"""Operators whose variance onnxruntime's CPU provider takes as E[x^2] - E[x]^2, because it spells them out in others
(docs/norm-operators.md): where a group's mean is large beside its deviation nothing correct is left, or NaN."""


def one_pass_variance(graph: ir.Graph) -> str:
    """Return which norms of a graph a large mean ruins in onnxruntime, and what avoids that; "" where none."""
    nodes = [node for node in graph.all_nodes() if is_standard(node, *_ONE_PASS)]
    if not nodes:
        return ""
    named = ", ".join(f"{node.op_type} {node.name or node.outputs[0].name!r}" for node in nodes[:3])
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return (
        f"onnxruntime has no kernel for {named}{more} and takes its variance as E[x^2] - E[x]^2, of which nothing is "
        "left where a mean is large beside the deviation: the runtime is wrong there and the file right; write it as "
        "Reshape, InstanceNormalization, Reshape (normdeploy export and fold do), or keep such inputs away"
    )
