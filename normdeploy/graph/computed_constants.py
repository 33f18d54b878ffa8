"""Numbers that follow from constants alone, stored or computed: a bound may be a product of two."""

from __future__ import annotations

import onnx_ir as ir
import torch

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph.exact import constant64, constant_tensor
from normdeploy.graph.operator_evaluation import OPERATOR_ERRORS, as_operand, evaluate_node
from normdeploy.graph.traits import Trait, has

_FEW = 4096
"""Elements of a constant up to which it is computed with."""

_DEEP = 16
"""Operators in a row that are looked at."""


def computed_constant(value: ir.Value | None, depth: int = 0) -> Array | None:
    """Return a constant as :func:`.exact.constant64` does, or what operators compute of few numbers of such.

    None of anything else.
    """
    stored = constant64(value) if depth == 0 or _is_small(value) else None
    node = None if value is None else value.producer()
    if stored is not None or node is None or value is None or depth > _DEEP or has(node, Trait.RANDOM):
        return stored
    if not node.inputs or node.graph is None or any(a.type is ir.AttributeType.GRAPH for a in node.attributes.values()):
        return None
    given = list[torch.Tensor | None]()
    for read in node.inputs:
        array = None if read is None else computed_constant(read, depth + 1)
        if read is not None and (array is None or array.size > _FEW):
            return None  # the others are not asked: most of a graph hangs on its inputs
        given.append(None if array is None else as_operand(array))
    try:
        found = evaluate_node(node, given, opset_imports=node.graph.opset_imports)[value.index() or 0]
    except (GraphError, *OPERATOR_ERRORS):
        return None
    return found.numpy()


def _is_small(value: ir.Value | None) -> bool:
    """Tell whether a constant is one of few numbers; it is not read for that."""
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size <= _FEW
