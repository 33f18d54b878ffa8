"""What an operator may be in the closure of a statistic: the grammar in which norms are spelled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, constant64
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.constant import holds_less

REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare", "GlobalAveragePool"})
_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Sqrt", "Reciprocal", "Pow", "Identity", "Cast", "CastLike", "Sum", "Mean"}
)
_SHAPES = Trait.MOVES | Trait.JOINS
CONTRACTIONS = frozenset({"MatMul", "Gemm", "Einsum"})
AT_ZERO = frozenset({"Relu", "Max", "Clip", "Abs"})
_ROOTS = frozenset({"Sqrt", "Pow", "ReduceL2"})


def is_plain(node: ir.Node) -> bool:
    """Tell whether an operator is elementwise arithmetic or moves values."""
    return is_standard(node, *_ELEMENTWISE) or has(node, _SHAPES)


def is_root(node: ir.Node) -> bool:
    """Tell whether an operator may take the root of a statistic."""
    return node.op_type in _ROOTS or has(node, Trait.NORMALIZES)


def keeps_precision(node: ir.Node) -> bool:
    """Tell whether a cast leaves no region that computes in more digits than its input and output have."""
    target = ir.DataType(node.attributes["to"].as_int())
    source = node.inputs[0]
    doubled = target == ir.DataType.DOUBLE and (source is None or source.dtype != ir.DataType.DOUBLE)
    return target in FLOATS and not doubled


def rounds(node: ir.Node, x: ir.Value) -> bool:
    """Tell whether a cast has fewer digits than a region's input: that it rounds is part of what a network computes."""
    return is_standard(node, "Cast") and holds_less(ir.DataType(node.attributes["to"].as_int()), x.dtype)


def acts_at_zero(node: ir.Node, known: set[ir.Value]) -> bool:
    """Tell whether a clamp's only bound is zero from below: the identity for a variance."""
    if node.op_type in ("Relu", "Abs"):
        return True
    if node.op_type == "Clip" and any(value is not None for value in node.inputs[2:]):
        return False
    bounds = [value for value in node.inputs if value is not None and value not in known]
    if len(bounds) != 1 or (node.op_type == "Max" and len(node.inputs) != 2):
        return False
    bound = constant64(bounds[0])
    return bound is not None and not np.any(bound)


def takes_root(node: ir.Node) -> bool:
    """Tell whether an operator takes a root: a square's Pow takes none."""
    exponent = constant64(node.inputs[1]) if node.op_type == "Pow" and node.inputs[1] is not None else None
    return node.op_type == "Sqrt" or (exponent is not None and bool(np.any(exponent % 1)))


def repeated(nodes: list[ir.Node]) -> list[ir.Node]:
    """Return the roots of statistics of values that are normalized already: one per further norm of a norm.

    Args:
        nodes: of one recognised normalization, in graph order.
    """
    roots = [node for node in nodes if is_root(node) and (node.op_type != "Pow" or takes_root(node))]
    found = []
    for index, root in enumerate(roots[1:], start=1):
        before = {value for earlier in roots[:index] for value in reached(tuple(nodes), earlier)}
        read = [node for node in nodes if before.intersection(node.inputs)]
        again = (node for node in read if node.op_type in REDUCTIONS or has(node, Trait.NORMALIZES))
        if any(node is root or set(root.inputs) & reached(tuple(nodes), node) for node in again):
            found.append(root)
    return found


def reached(nodes: tuple[ir.Node, ...], seed: ir.Node) -> set[ir.Value]:
    """Return what a node writes, and all that depends on it among some nodes in graph order."""
    found: set[ir.Value] = set(seed.outputs)
    for node in nodes:
        if any(value in found for value in node.inputs if value is not None):
            found.update(node.outputs)
    return found
