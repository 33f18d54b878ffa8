"""Numbers that say how many elements there are: the ends of a Range, the root of a count, sizes that are halved.

A rounding of 16.0 in front of a Range would make it one element longer, and one of 4.0 in front of a Reshape leave no
row of it, which no float32 run does: what follows from sizes and from numbers of the program alone gets no noise on its
way there.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.bounds.accuracy import rounds
from normdeploy.verification.derivation.side.settled import shaping

_WHOLE = ("Floor", "Ceil", "Round")


def counting(graph: ir.Graph) -> set[ir.Node]:
    """Return the operators that round, follow from sizes and constants alone, and lead to a number of elements.

    Args:
        graph: the graph; its bodies are looked at alone, each without the graph around it.
    """
    constant, known = fixed_nodes(nodes_in(graph))
    whole = [node for node in known - constant if is_standard(node, *_WHOLE) or _to_integers(node)]
    read = [value for node in nodes_in(graph) for value in shaping(node)]
    read += [value for node in whole for value in node.inputs]  # of constants alone they are decisions like any other
    found: set[ir.Node] = set()
    while read:
        value = read.pop()
        maker = None if value is None else value.producer()
        if maker is not None and maker in known and maker not in found:
            found.add(maker)
            read += maker.inputs
    return {node for node in found if rounds(node)}


def _to_integers(node: ir.Node) -> bool:
    return is_standard(node, "Cast") and ir.DataType(node.attributes.get_int("to", 1)).is_integer()
