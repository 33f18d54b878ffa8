"""Gemm, Y = alpha A' B' + beta C, takes an affine map over (A' is A or its transpose, likewise B').

Behind, per column of Y: the columns of B' times s; C' = s beta C + t (any broadcast shape), beta' = 1. A map that
varies along the rows of Y goes into A the same way. In front, per column of A' (the summed axis k): the rows of B'
times s, C' = beta C + alpha t B', beta' = 1; likewise rows of B' into A. alpha stays.
An operand stored in integers takes a scale as :mod:`.absorb_quantized` and :mod:`.weight` say.

Refused:
- the operand that would take the scale is computed at run time;
- C, where it changes (behind, or in front with t != 0), is computed at run time or stored in integers;
- the map varies along both axes of Y (behind) or along an axis that is not summed (in front);
- float16 overflow.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.absorb_quantized import is_quantized
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    array_of,
    copy_cost,
    derive,
    dtype_of,
    fits,
    floating,
    integer,
    is_constant,
    optional,
    required,
    scaled,
    storable,
)
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.weight import (
    bias_refused,
    computed,
    dtype_of_weight,
    is_fixed,
    overflows,
    sum_over,
    take,
)


def _transposed(node: ir.Node, operand: int) -> bool:
    return bool(integer(node, "transA" if operand == 0 else "transB", 0))


def _oriented(node: ir.Node, operand: int, array: Array) -> Array:
    """Turn an array that broadcasts against A' or B' into one that broadcasts against A or B."""
    return array.T if _transposed(node, operand) else array


def _addend(node: ir.Node) -> Array:
    """Return beta C as it stands, of rank 2 at most; 0 where C is absent."""
    addend = optional(node, 2)
    return np.zeros((1, 1)) if addend is None else floating(node, "beta", 1.0) * array_of(addend)


def _replace(region: Region, node: ir.Node, operands: list[ir.Value | None], total: Array | None) -> ir.Node:
    """Make the new Gemm; ``total`` is the new beta C (None keeps C and beta)."""
    addend = optional(node, 2)
    attributes = dict(node.attributes)
    if total is None:
        inputs = [*operands] + ([] if addend is None else [addend])
        return region.replace(node, inputs)
    attributes.pop("beta", None)
    value: Array = total
    if addend is not None:
        new = derive(region, addend, lambda _old: value, value.shape)
    else:
        factor = operands[1] if is_constant(operands[1]) else operands[0]
        assert factor is not None
        dtype = dtype_of(factor) if is_constant(factor) else node.outputs[0].dtype
        if dtype is None:
            raise TypeError(f"Gemm {node.name!r} has no type; expected a typed result")
        stem = str(factor.name).removesuffix(".weight")
        new = region.constant(lambda: value, value.shape, dtype, name=f"{stem}.bias")
    return region.replace(node, [*operands, new], attributes=attributes)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind the Gemm."""
    del index
    addend = optional(node, 2)
    if addend is not None and not is_constant(addend):
        return Refusal(f"the addend C of {describe(node)} is computed at run time", node)
    if len(mapping.scale_axes) > 1:
        return Refusal(f"it varies along both axes of {describe(node)}", node)
    wanted = [0] if 0 in mapping.scale_axes else [1] if 1 in mapping.scale_axes else [1, 0]
    taking = [operand for operand in wanted if is_constant(required(node, operand))]
    taking = taking or [operand for operand in wanted if is_quantized(required(node, operand))]
    if not taking:
        return computed(node)
    operand = taking[0]
    factor_value = required(node, operand)
    factor = _oriented(node, operand, mapping.scale)
    total = None if mapping.no_shift and addend is None else _trim(mapping(_addend(node)), addend)
    if total is not None and not storable(node.outputs[0].dtype, total):
        return overflows(node, node.outputs[0].dtype)

    if is_quantized(factor_value):
        return _behind_quantized(node, operand, AffineMap.of(factor, 0.0, 2), total, search)
    if not fits(dtype_of(factor_value), lambda: array_of(factor_value) * factor):
        return overflows(node, dtype_of(factor_value))

    def build(region: Region) -> ir.Value:
        operands: list[ir.Value | None] = [node.inputs[0], node.inputs[1]]
        if not mapping.no_scale:
            operands[operand] = scaled(region, factor_value, factor)
        return _replace(region, node, operands, total).outputs[0]

    extra = (0.0 if mapping.no_scale else copy_cost(factor_value, node)) + copy_cost(addend, node)
    return BackwardPlan(build, (node,), (node,), extra)


def _behind_quantized(
    node: ir.Node, operand: int, factor: AffineMap, total: Array | None, search: Backward
) -> BackwardPlan | Refusal:
    """Let a weight stored in integers take the scale; ``total`` is the new beta C."""
    plan = search.into(required(node, operand), factor, node)
    if isinstance(plan, Refusal):
        return plan

    def build(region: Region) -> ir.Value:
        operands: list[ir.Value | None] = [node.inputs[0], node.inputs[1]]
        operands[operand] = plan.build(region)
        return _replace(region, node, operands, total).outputs[0]

    return BackwardPlan(build, (*plan.old, node), (node,), plan.cost + copy_cost(optional(node, 2), node))


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the Gemm."""
    if index == 2:
        return Refusal(f"{describe(node)} adds it to a product", node)
    other = 1 - index
    weight, addend = required(node, other), optional(node, 2)
    if not is_fixed(weight):
        return computed(node)
    refused = bias_refused(node, mapping, called="addend C")
    if refused is not None:
        return refused
    oriented = mapping.moved(lambda array: _oriented(node, index, array))
    summed = 1 - index  # axis of A' (or B') that the product sums over
    if not oriented.axes <= {summed}:
        return Refusal(f"it varies along another axis than the one {describe(node)} sums over", node)
    # along the summed axis, as it lies in the other operand
    taken = take(node, weight, _oriented(node, other, oriented.scale.T), search)
    if isinstance(taken, Refusal):
        return taken
    total: Array | None = None
    if not mapping.no_shift:
        axis = 1 - index if _transposed(node, other) else index
        product = _oriented(node, other, sum_over(weight, _oriented(node, other, oriented.shift.T), [axis]))
        total = _trim(_addend(node) + floating(node, "alpha", 1.0) * product, addend)
        if not storable(dtype_of_weight(weight), total):
            return overflows(node, dtype_of_weight(weight))

    def build(region: Region, raw: ir.Value) -> None:
        operands: list[ir.Value | None] = [raw, raw]
        operands[other] = taken.build(region)
        region.same(node.outputs[0], _replace(region, node, operands, total).outputs[0])

    extra = taken.cost + (0.0 if mapping.no_shift else copy_cost(addend, node))
    return ForwardPlan(build, (*taken.old, node), (node,), extra)


def _trim(total: Array, addend: ir.Value | None) -> Array:
    """Drop a leading axis of size 1 where C had none or did not exist: a bias stays a vector."""
    rank = 1 if addend is None or addend.shape is None else addend.shape.rank()
    return total.reshape(total.shape[1:]) if rank < 2 and total.ndim == 2 and total.shape[0] == 1 else total
