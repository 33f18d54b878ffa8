"""Sites in front of a Softmax of one element: it writes 1 whatever it reads, so that no output depends on them.

Attention over one key weighs it with 1, whatever scale its score has: MobileViT's last stage cuts its smallest image
into one patch. Where the graph fixes that size, a file with another scale is the same function, and there is nothing
to detect. An epsilon may still make no number of a score, which shows, so that norms with statistics are not meant.

So the mutants of an affine map are harmless where all that depends on its output goes into a Softmax or LogSoftmax over
an axis of which the graph says that it has one element, or is asked for its shape alone.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.mutation.mutants import Site

_FIRST_OPSET = 13
"""Below it, a Softmax takes all axes from the one it names."""


def one_key_nodes(graph: ir.Graph) -> frozenset[ir.Node]:
    """Return the operators of a graph that write 1 whatever they read."""
    known = graph.opset_imports.get("", 0) >= _FIRST_OPSET
    return frozenset(filter(_of_one, graph)) if known else frozenset()


def of_one_key(graph: ir.Graph, site: Site, ones: frozenset[ir.Node]) -> str:
    """Return in a sentence that no output depends on the numbers of an affine map; "" where one may.

    Args:
        graph: in which the site is. ones: :func:`one_key_nodes` of it.
    """
    if site.inner or not site.is_affine or not ones:
        return ""
    start = next((v for node in graph for v in node.outputs if v.name == site.output), None)
    if start is None:
        return ""
    found: dict[ir.Node, None] = {}
    queue, met = [start], {start}
    for value in queue:
        if value.is_graph_output():
            return ""
        for node, _ in value.uses():
            if node.graph is not graph:
                return ""
            if has(node, Trait.SIZES):
                continue
            if node in ones:
                found[node] = None
                continue
            queue += [output for output in node.outputs if output not in met]
            met.update(node.outputs)
    if not found:
        return ""  # nothing reads it
    where = ", ".join(repr(node.name or str(node.outputs[0].name)) for node in list(found)[:3])
    return (
        f"undetectable and harmless here: all that depends on it goes into Softmax {where} over one element, whose "
        "weight is 1 whatever its score"
    )


def _of_one(node: ir.Node) -> bool:
    """Tell whether an operator is a Softmax over an axis of one element, at all sizes."""
    value = node.inputs[0] if is_standard(node, "Softmax", "LogSoftmax") else None
    if value is None or value.shape is None:
        return False
    axis = node.attributes.get_int("axis", -1)
    return -len(value.shape) <= axis < len(value.shape) and value.shape[axis] == 1
