"""Smaller places where a map that stays can stand: (x g) s = x (g s), with g one number per channel and sample.

What multiplies a large value by a small computed one (the factor of a global response norm, a gate) takes a scale on
either side. An identity in front of the small operand is an Affine like any other: the maps of the graph, which cost
more, are asked to leave before it, and what is left over stands there. Where nothing is, it disappears again.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, WHERE, constant_tensor, module_path
from normdeploy.graph.edit import take_out, take_place
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import is_affine, new_affine

SMALLER = 8
"""How many times smaller than the product an operand is to be, so that a further operator on it is worth its call."""


def opened(graph: ir.Graph, among: Collection[ir.Node]) -> list[ir.Node]:
    """Put an identity in front of each small operand of a product, and return them.

    Args:
        graph: changed in place.
        among: operators that take part in a contradiction: other places would leave it as it is.
    """
    made: list[ir.Node] = []
    for node in [node for node in graph if node in among]:
        index = _small_operand(node)
        if index is None:
            continue
        value = node.inputs[index]
        assert value is not None
        assert value.shape is not None
        cells = [dim if isinstance(dim, int) else 1 for dim in value.shape]
        nothing = AffineMap(np.ones(cells), np.zeros((1,) * len(cells)))  # written out: it may come to vary
        place = new_affine(graph, value, nothing, like=node, origins=(), output=value)
        place.name, place.metadata_props[WHERE] = None, module_path(node)
        graph.insert_before(node, place)
        node.replace_input_with(index, place.outputs[0])
        made.append(place)
    return made


def closed(places: list[ir.Node]) -> None:
    """Take identities out again."""
    for place in places:
        source = place.inputs[0]
        assert source is not None
        take_place(source, place.outputs[0], named=False)
    take_out(places)


def _small_operand(node: ir.Node) -> int | None:
    """Return which operand of a product of two computed values is small beside the other; None where none is."""
    if not is_standard(node, "Mul"):
        return None
    sizes = []
    for value in node.inputs:
        known = value is not None and value.shape is not None and len(value.shape) > 0 and value.dtype in FLOATS
        if value is None or not known or constant_tensor(value) is not None or is_affine(value.producer()):
            return None
        sizes.append(bytes_moved.elements(value))
    index = int(sizes[1] < sizes[0])
    return index if 0 < sizes[index] * SMALLER <= sizes[1 - index] else None
