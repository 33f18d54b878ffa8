"""Values that no input changes: what follows from constants, or from constants and sizes."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import bodies_of


def fixed_nodes(nodes: Iterable[ir.Node], *, by_sizes: bool) -> set[ir.Node]:
    """Return the operators whose results are the same whatever is fed.

    Args:
        nodes: operators of a graph, in its order. by_sizes: what follows from the sizes of inputs is among them: it is
            the same for all inputs of one size.
    """
    found: set[ir.Node] = set()
    for node in nodes:
        if has(node, Trait.RANDOM) or bodies_of(node):
            continue
        if (by_sizes and is_standard(node, "Shape", "Size")) or all(_is_fixed(v, found) for v in node.inputs):
            found.add(node)
    return found


def _is_fixed(value: ir.Value | None, found: set[ir.Node]) -> bool:
    return value is None or value.producer() in found or constant_tensor(value) is not None
