"""Values that no input changes: what follows from constants, or from constants and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import onnx_ir as ir

from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import bodies_of


class Fixed(NamedTuple):
    """Operators whose results are the same whatever is fed.

    Args:
        by_constants: they follow from constants alone.
        by_sizes: they follow from constants and the sizes of inputs: the same for all inputs of one size. Those that
            follow from constants alone are among them.
    """

    by_constants: set[ir.Node]
    by_sizes: set[ir.Node]


def fixed_nodes(nodes: Iterable[ir.Node]) -> Fixed:
    """Return the operators whose results are the same whatever is fed.

    Args:
        nodes: operators of a graph, in its order.
    """
    found = Fixed(set(), set())
    for node in nodes:
        if has(node, Trait.RANDOM) or bodies_of(node):
            continue
        read = [(v, v.producer()) for v in node.inputs if v is not None]
        computed = [made for v, made in read if made not in found.by_constants and constant_tensor(v) is None]
        if is_standard(node, "Shape", "Size") or found.by_sizes.issuperset(computed):
            found.by_sizes.add(node)
        if found.by_constants.issuperset(computed):
            found.by_constants.add(node)
    return found
