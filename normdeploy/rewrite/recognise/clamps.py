"""Nodes that treat a dynamic dimension otherwise once it exceeds a constant: no sizes tried show what they do beyond.

``x[:, :512]`` is x itself at every size up to 512, and ``min(n, 512)`` is n. A region that holds one cannot be judged
by probing; what lies behind it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.recognise.norm_region import Region

_UNBOUNDED = 2**31 - 1
"""Ends of slices from here on say "to the end", whatever the size."""

_ENDS = frozenset({0, 1, -1})
"""Where a slice may begin or end without a word on the size: any dimension has one element at least."""

_CLAMPS = frozenset({"Min", "Max", "Clip", "Mod"})


def clamp_of(region: Region, nodes: Sequence[ir.Node]) -> ir.Node | None:
    """Return a node whose meaning changes at some size of a dynamic dimension; None where there is none.

    Args:
        region: the region that ``nodes`` are of.
        nodes: what is judged, of the region's nodes; what it takes of shapes is looked at too.
    """
    wanted = {value for node in nodes for value in node.inputs}
    dynamic = {
        output
        for node in region.shape_nodes
        if node.inputs[0] is not None and node.inputs[0].shape is not None and not node.inputs[0].shape.is_static()
        for output in node.outputs
    }
    found: dict[ir.Value, ir.Node] = {}
    for node in region.side:
        if not dynamic.intersection(node.inputs):
            continue
        dynamic.update(node.outputs)
        before = next((found[value] for value in node.inputs if value in found), None)
        if before is not None or _compares(node, dynamic) or (node.op_type == "Slice" and _cuts(node, dynamic)):
            found.update(dict.fromkeys(node.outputs, before or node))
    inside = next((found[value] for value in wanted if value in found), None)
    return inside or next((node for node in nodes if node.op_type == "Slice" and _cuts(node, dynamic)), None)


def _compares(node: ir.Node, dynamic: set[ir.Value]) -> bool:
    """Tell whether a node holds sizes against a number above the smallest size, one, or against one another."""
    if not (has(node, Trait.COMPARES) or node.op_type in _CLAMPS):
        return False
    others = [value for value in node.inputs if value is not None and value not in dynamic]
    if len(others) < sum(value is not None for value in node.inputs) - 1:
        return True
    highest = 0 if has(node, Trait.COMPARES) else 1
    bounds = [constant64(value) for value in others]
    return any(bound is None or bool(np.any(np.asarray(bound) > highest)) for bound in bounds)


def _cuts(node: ir.Node, dynamic: set[ir.Value]) -> bool:
    """Tell whether a Slice of a dynamic axis begins or ends at a number of elements."""
    x = node.inputs[0]
    if x in dynamic:
        return False  # a vector of sizes: how many there are is the rank
    if x is None or x.shape is None or len(node.inputs) < 3:  # bounds as attributes: an operator set below the rules'
        return True
    starts, ends = constant64(node.inputs[1]), constant64(node.inputs[2])
    given = optional(node, 3)
    axes = np.arange(0 if starts is None else starts.size) if given is None else constant64(given)
    if axes is None:
        return not x.shape.is_static()
    for index, axis in enumerate(np.asarray(axes).reshape(-1)):
        if isinstance(x.shape[int(axis)], int):
            continue
        for bound in (starts, ends):
            if bound is None:
                continue  # computed from sizes: tried at several
            number = int(np.asarray(bound).reshape(-1)[index])
            if number not in _ENDS and abs(number) < _UNBOUNDED:
                return True
    return False
