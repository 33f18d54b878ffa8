"""A linear map of the last axis of one value: what a chain of MatMul, Gemm, bias Adds and affine maps computes.

y = x M + b, with M [I, O] and b [O], in float64 on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor, tensor64
from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.constant import (
    along,
    dtype_of,
    fits,
    floating,
    integer,
    is_constant,
    optional,
    required,
    shape_of,
)
from normdeploy.rewrite.affine.map import Array
from normdeploy.rewrite.affine.node import affine_map, is_affine
from normdeploy.rewrite.branches.chain import DEPTH, alone


@dataclass(frozen=True, eq=False)
class Product:
    """A linear map of the last axis of ``source``.

    Args:
        source: x, of rank 2 or more.
        nodes: the operators that compute it now, source first.
        ins: I.
        outs: O.
        matrix: computes M as float64 [I, O].
        bias: computes b as float64 [O]; None for zero.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    ins: int
    outs: int
    matrix: Callable[[], Array]
    bias: Callable[[], Array] | None

    @property
    def products(self) -> tuple[ir.Node, ...]:
        """The MatMul and Gemm nodes among its operators."""
        return tuple(node for node in self.nodes if node.op_type in ("MatMul", "Gemm"))


def weight_of(node: ir.Node) -> ir.Value:
    """Return the constant operand of a product."""
    return required(node, 1)


def _width(value: ir.Value) -> int | None:
    shape = value.shape
    if shape is None or shape.rank() < 2:
        return None
    last = shape[shape.rank() - 1]
    return last if isinstance(last, int) else None


def identity(value: ir.Value) -> Product | None:
    """Return x itself as a product with the unit matrix; None if its last dimension is not known."""
    width = _width(value)
    return None if width is None else Product(value, (), width, width, lambda: np.eye(width), None)


def of_node(node: ir.Node) -> Product | None:
    """Return what one operator computes of its first input, or None."""
    if is_affine(node):
        return _affine(node)
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul":
        return _matmul(node)
    if node.op_type == "Gemm":
        return _gemm(node)
    return _bias(node) if node.op_type == "Add" else None


def _matmul(node: ir.Node) -> Product | None:
    source, weight = required(node, 0), required(node, 1)
    tensor = constant_tensor(weight)
    if not is_constant(weight) or tensor is None or len(shape_of(weight)) != 2:
        return None
    if source.shape is None or source.shape.rank() < 2:
        return None
    ins, outs = shape_of(weight)
    return Product(source, (node,), ins, outs, lambda: tensor64(tensor), None)


def _gemm(node: ir.Node) -> Product | None:
    source, weight, addend = required(node, 0), required(node, 1), optional(node, 2)
    tensor = constant_tensor(weight)
    if not is_constant(weight) or tensor is None or integer(node, "transA", 0):
        return None
    alpha, beta = floating(node, "alpha", 1.0), floating(node, "beta", 1.0)
    transposed = bool(integer(node, "transB", 0))
    ins, outs = shape_of(weight)[::-1] if transposed else shape_of(weight)

    def matrix() -> Array:
        array = tensor64(tensor)
        return alpha * (array.T if transposed else array)

    if addend is None:
        return Product(source, (node,), ins, outs, matrix, None)
    vector = as_bias(addend, outs)
    return None if vector is None else Product(source, (node,), ins, outs, matrix, lambda: beta * vector())


def as_bias(value: ir.Value, outs: int) -> Callable[[], Array] | None:
    """Return a constant that varies along the last axis only as a vector of ``outs``; None if it is not one."""
    if not is_constant(value):
        return None
    shape = shape_of(value)
    if any(dim != 1 for dim in shape[:-1]) or (shape and shape[-1] not in (1, outs)):
        return None
    tensor = constant_tensor(value)
    assert tensor is not None
    return lambda: np.array(np.broadcast_to(tensor64(tensor).reshape(-1), (outs,)))


def _bias(node: ir.Node) -> Product | None:
    for index in (0, 1):
        source, constant = required(node, index), required(node, 1 - index)
        width = _width(source)
        if width is None or source.shape is None or constant.shape is None:
            continue
        vector = as_bias(constant, width)
        if vector is not None and constant.shape.rank() <= source.shape.rank():
            return Product(source, (node,), width, width, partial(np.eye, width), vector)
    return None


def _affine(node: ir.Node) -> Product | None:
    source = required(node, 0)
    width = _width(source)
    mapping = affine_map(node)
    last = mapping.rank - 1
    if width is None or not mapping.axes <= {last}:
        return None
    scale, shift = along(mapping.scale, last, width), along(mapping.shift, last, width)
    return Product(source, (node,), width, width, lambda: np.diag(scale), None if mapping.no_shift else lambda: shift)


def compose(first: Product, second: Product) -> Product:
    """Return ``second`` after ``first``: (x A + a) B + b = x (A B) + (a B + b)."""

    def bias() -> Array:
        total = np.zeros(second.outs) if second.bias is None else second.bias()
        return total if first.bias is None else total + first.bias() @ second.matrix()

    return Product(
        first.source,
        (*first.nodes, *second.nodes),
        first.ins,
        second.outs,
        lambda: np.asarray(first.matrix() @ second.matrix()),
        None if first.bias is None and second.bias is None else bias,
    )


def add(items: list[tuple[Product, float]], constants: list[tuple[Callable[[], Array], float]]) -> Product:
    """Return the sum of signed products of one source, and of signed bias vectors, as one product."""
    head = items[0][0]

    def matrix() -> Array:
        total = np.zeros((head.ins, head.outs))
        for item, sign in items:
            total += sign * item.matrix()
        return total

    vectors = [(item.bias, sign) for item, sign in items if item.bias is not None] + constants

    def bias() -> Array:
        total = np.zeros(head.outs)
        for vector, sign in vectors:
            total += sign * vector()
        return total

    nodes = tuple(node for item, _ in items for node in item.nodes)
    return Product(head.source, nodes, head.ins, head.outs, matrix, bias if vectors else None)


def chains(leaf: ir.Value, graph: ir.Graph, *, exclusive: bool) -> list[Product]:
    """Return what ``leaf`` is of each value that it depends on through linear maps of the last axis, nearest first.

    Args:
        leaf: the end of the chain.
        graph: chains do not leave it.
        exclusive: whether its producer may go: nothing but the rewrite reads ``leaf``.
    """
    start = identity(leaf)
    found = [] if start is None else [start]
    whole: Product | None = None
    value = leaf
    while len(found) <= 2 * DEPTH and exclusive:
        producer = value.producer()
        if producer is None or producer.graph is not graph:
            break
        step = of_node(producer)
        if step is None:
            break
        whole = step if whole is None else compose(step, whole)
        found.append(whole)
        value = step.source
        exclusive = alone(value, producer)
    return found


def cost_now(product: Product) -> float:
    """Return what the operators cost as they are."""
    total = 0.0
    for node in product.nodes:
        result = node.outputs[0]
        if node.op_type == "Add":
            total += cost.bias_bytes(result)
            continue
        total += cost.pass_bytes(result)
        step = of_node(node)
        if node.op_type in ("MatMul", "Gemm") and step is not None:
            total += cost.MULTIPLY_ADD * cost.elements(result) * step.ins
    return total


def cost_as_one(product: Product, result: ir.Value) -> float:
    """Return what one product with its bias costs."""
    bias = 0.0 if product.bias is None or is_gemm(product) else cost.bias_bytes(result)
    return cost.pass_bytes(result) + cost.MULTIPLY_ADD * cost.elements(result) * product.ins + bias


def is_gemm(product: Product) -> bool:
    """Tell whether it is written as one Gemm: all its products are."""
    return all(node.op_type == "Gemm" for node in product.products)


def storable(product: Product) -> bool:
    """Tell whether matrix and bias fit the dtype of the weights (only float16 is narrow enough to ask)."""
    dtype = dtype_of(weight_of(product.products[0]))
    return fits(dtype, product.matrix) and (product.bias is None or fits(dtype, product.bias))
