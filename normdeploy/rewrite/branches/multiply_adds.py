"""What linear operators cost a runtime, in multiply-adds of a good convolution.

An operator costs its multiply-adds, and :data:`PASS` for each element of its result, which is written and read again.
So a kernel that is wider, or dense where it was depthwise, must save operators to pay. Only ratios matter. An average
pool is as fast as a depthwise kernel where channels come in blocks (onnxruntime's layout for processors with AVX-512),
and many times slower where they do not.

Source: measured by ``python benchmarks/branch_cost.py`` (docs/graphs-from-anywhere.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.operator_inputs import required, shape_of
from normdeploy.rewrite.affine import bytes_moved, is_affine
from normdeploy.rewrite.branches.linear_map import LinearMap
from normdeploy.rewrite.branches.operator_as_map import Reading
from normdeploy.rewrite.branches.tree import is_sum

PASS = 12.0
"""What writing and reading one element costs."""

BLOCK = 16
"""Channels that a runtime keeps together."""

SLOW_POOL = 30.0
"""What one tap of an average pool costs where channels do not come in blocks."""


def of_nodes(nodes: Iterable[ir.Node], *, maps_go: bool = False) -> float:
    """Return what operators cost as they are, or (``maps_go``) once the affine maps among them have gone elsewhere."""
    return sum(_of_node(node) for node in nodes if not (maps_go and is_affine(node)))


def of_map(mapping: LinearMap, result: ir.Value, *, apart_bias: bool = False) -> float:
    """Return what one operator costs that computes a map.

    Args:
        mapping: what it computes.
        result: what it writes.
        apart_bias: whether its bias is an operator of its own.
    """
    bias = bytes_moved.BIAS_PASS * PASS if apart_bias and mapping.bias is not None else 0.0
    return bytes_moved.elements(result) * (PASS + mapping.multiply_adds + bias)


def pays(result: ir.Value, *, maps_go: bool = False) -> Callable[[LinearMap, Reading, LinearMap], bool]:
    """Return how to tell whether a map should take up one more leaf of the sum that makes ``result``."""

    def tell(before: LinearMap, leaf: Reading, after: LinearMap) -> bool:
        saved = of_nodes(leaf.nodes, maps_go=maps_go) + PASS * bytes_moved.elements(result)
        return of_map(after, result) - of_map(before, result) <= saved

    return tell


def _of_node(node: ir.Node) -> float:
    result = node.outputs[0]
    each = PASS
    linear = linear_of(node)
    if linear is not None:
        each += linear.terms(shape_of(required(node, linear.weight)))
    elif node.op_type == "AveragePool":
        channels = None if result.shape is None else result.shape[1]
        blocked = isinstance(channels, int) and channels % BLOCK == 0
        each += math.prod(node.attributes.get_ints("kernel_shape", ())) * (1.0 if blocked else SLOW_POOL)
    elif is_sum(node):  # runtimes add a constant with the product in front of it
        constants = sum(constant_tensor(value) is not None for value in node.inputs)
        each = PASS * (len(node.inputs) - 1 - constants + bytes_moved.BIAS_PASS * constants)
    return bytes_moved.elements(result) * each
