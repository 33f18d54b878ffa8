"""MatMul, Y = A B (batched), takes an affine map over, or passes it on between its operands and its result.

Behind (s * Y + t): a scale that varies along the columns of Y (last axis) goes into B, one along the rows into A, one
along a batch axis into an operand that has that axis. A constant operand absorbs it; a computed one gets asked in turn.
A shift becomes an Add behind the product, in the place of the map.

In front, on A (s varies along the summed axis k): B'[k, :] = s[k] B[k, :], and t B is added to the result, into the
bias Add that follows or as a new one. A scale constant along k passes on to the result; if B is constant the shift
passes on too, as t B: (s A + t) B = s (A B) + t B. On B likewise.

Refused:
- an operand of rank 1 (its axis vanishes from the result), unknown ranks;
- the scale varies along both rows and columns of Y, or in front along k and another axis;
- in front, the other operand is computed at run time and the shift is not zero, or the scale varies along k;
- in front, the other operand is stored in integers without a step per k, and the scale varies along k;
- float16 overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.axes import Dims, dims_of, restrict, widen
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    array_of,
    copy_cost,
    derive,
    is_constant,
    required,
    shape_of,
    storable,
)
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array, varying
from normdeploy.rewrite.affine.naming import describe, readers
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.weight import is_fixed, overflows, shape_of_weight, sum_over, take, unscaled, values_of


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind the product, or pass its scale on to an operand."""
    del index
    operands = required(node, 0), required(node, 1)
    scales: list[tuple[int, Array]] = []
    for position, value in enumerate(operands):
        dims = dims_of(value)
        if dims is None or len(dims) < 2:
            return Refusal(f"an operand of {describe(node)} is a vector or of unknown rank", node)
        found = _operand_scale(mapping.scale, position, dims)
        if found is not None:
            scales.append((position, found))
    if not scales:
        return Refusal(f"it varies along more axes than one operand of {describe(node)} has", node)
    scales.sort(key=lambda item: not is_constant(operands[item[0]]))
    refusal: Refusal | None = None
    for position, scale in scales:
        operand_map = AffineMap(scale, np.zeros((1,) * scale.ndim))
        before = search.attempt()
        plan = search.into(operands[position], operand_map, node)
        if isinstance(plan, BackwardPlan):
            return _behind(node, position, plan, mapping)
        search.give_up(before)
        refusal = refusal or plan
    assert refusal is not None
    return refusal


def _operand_scale(scale: Array, position: int, dims: Dims) -> Array | None:
    """Return s as it applies to one operand, or None if the operand lacks an axis along which it varies."""
    summed = scale.ndim - 1 if position == 0 else scale.ndim - 2
    if scale.shape[summed] != 1:
        return None
    free = [dim if axis != (len(dims) - 1 if position == 0 else len(dims) - 2) else 1 for axis, dim in enumerate(dims)]
    return restrict(scale, free)


def _behind(node: ir.Node, position: int, plan: BackwardPlan, mapping: AffineMap) -> BackwardPlan:
    """Plan one operand that carries the scale, and the shift behind the product (stored there already, in the map)."""
    operands = list(node.inputs)

    def build(region: Region) -> ir.Value:
        inputs = list(operands)
        inputs[position] = plan.build(region)
        product = region.replace(node, inputs)
        if mapping.no_shift:
            return product.outputs[0]
        return add_constant(region, product, mapping.shift)

    extra = 0.0 if mapping.no_shift else cost.bias_bytes(node.outputs[0])
    return BackwardPlan(build, (*plan.old, node), plan.into or (node,), plan.cost + extra)


def add_constant(region: Region, product: ir.Node, shift: Array) -> ir.Value:
    """Add a constant behind a product; return the sum."""
    result = product.outputs[0]
    while shift.ndim > 1 and shift.shape[0] == 1:
        shift = shift[0]
    value = shift.reshape(-1) if shift.ndim == 0 else shift
    assert result.dtype is not None
    stem = product.name or "product"
    bias = region.constant(lambda: value, value.shape, result.dtype, name=f"{stem}.bias")
    return region.insert("Add", [result, bias], after=product, like=result).outputs[0]


@dataclass(frozen=True)
class _Bias:
    """The Add of a constant that follows a product."""

    node: ir.Node
    constant: ir.Value


def bias_behind(value: ir.Value, graph: ir.Graph) -> _Bias | None:
    """Return the Add of a constant that is the only reader of ``value`` and keeps its shape, or None."""
    users = readers(value)
    if len(users) != 1 or value.is_graph_output() or value.shape is None:
        return None
    node = users[0]
    if node.op_type != "Add" or node.domain not in ("", "ai.onnx") or node.graph is not graph:
        return None
    other = required(node, 1) if node.inputs[0] is value else required(node, 0)
    if other is value or not is_constant(other) or other.shape is None or node.outputs[0].shape is None:
        return None
    keeps = node.outputs[0].shape == value.shape
    return _Bias(node, other) if keeps and other.shape.rank() <= value.shape.rank() else None


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Absorb a map in front of the product, or pass its scale on to the result."""
    value, other = required(node, index), required(node, 1 - index)
    result = node.outputs[0]
    shapes = dims_of(other), dims_of(result)
    if shapes[0] is None or shapes[1] is None or mapping.rank < 2 or len(shapes[0]) < 2 or value is other:
        return Refusal(f"an operand of {describe(node)} is a vector, of unknown rank, or used twice", node)
    summed = mapping.rank - 1 if index == 0 else mapping.rank - 2
    if is_fixed(other) and mapping.scale_axes <= {summed}:
        absorbed = _in_front(node, index, mapping, search)
        if not isinstance(absorbed, Refusal) or summed in mapping.scale_axes:
            return absorbed
    if summed in mapping.scale_axes:
        if not is_fixed(other):
            return Refusal(
                f"{describe(node)} sums over the axis along which it varies, with a value computed at run time", node
            )
        return Refusal(f"its scale varies along the axis that {describe(node)} sums over and along another", node)
    scale, shift = widen(mapping.scale, len(shapes[1])), np.zeros((1,) * len(shapes[1]))
    unchanged = BackwardPlan(lambda _region: other)
    if not mapping.no_shift:
        if not is_fixed(other):
            return Refusal(
                f"{describe(node)} multiplies it with a value computed at run time; its shift is not zero", node
            )
        shift = _shift_through(mapping.shift, values_of(other), summed, index)
        unchanged = unscaled(other)
    plan = search.through(result, AffineMap.of(scale, shift, len(shapes[1])))
    if isinstance(plan, Refusal):
        return plan

    def build(region: Region, raw: ir.Value) -> None:
        inputs = list(node.inputs)
        inputs[index], inputs[1 - index] = raw, unchanged.build(region)
        plan.build(region, region.replace(node, inputs).outputs[0])

    grown = shift.size * cost.itemsize(result) if len(varying(shift)) > 1 else 0.0
    return ForwardPlan(build, (*unchanged.old, node, *plan.old), plan.into, plan.cost + grown)


def _shift_through(shift: Array, matrix: Array, summed: int, index: int) -> Array:
    """Return t B (or A t), where t does not have to be written out along the summed axis."""
    size = matrix.shape[-2] if index == 0 else matrix.shape[-1]
    wide = [size if axis == summed else length for axis, length in enumerate(shift.shape)]
    full = np.broadcast_to(shift, wide)
    return np.asarray(full @ matrix if index == 0 else matrix @ full)


def _in_front(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    weight, result = required(node, 1 - index), node.outputs[0]
    matrix_axis = -2 if index == 0 else -1  # of the weight: the summed one
    shape = shape_of_weight(weight)
    size, stack = shape[matrix_axis], (1,) * (len(shape) - 2)

    def vector(array: Array) -> Array:
        return np.array(np.broadcast_to(array.reshape(-1), (size,)))

    scale = vector(mapping.scale)
    factor = scale[:, None] if index == 0 else scale[None, :]
    taken = take(node, weight, factor.reshape(stack + factor.shape), search)
    if isinstance(taken, Refusal):
        return taken
    total: Array | None = None  # what is added behind: t B, and the bias that was there
    grown = 0.0
    bias: _Bias | None = None
    if not mapping.no_shift:
        summed = mapping.rank - 1 if index == 0 else mapping.rank - 2
        if mapping.shift_axes <= {summed}:
            # of a stack of matrices, the same sum for each
            shift = vector(mapping.shift)
            along_k = shift[:, None] if index == 0 else shift[None, :]
            added = sum_over(weight, along_k.reshape(stack + along_k.shape), [len(shape) + matrix_axis])
        else:
            added = _shift_through(mapping.shift, values_of(weight), summed, index)
            grown = added.size * cost.itemsize(result)
        bias = bias_behind(result, search.graph)
        if bias is not None and bias.node in search.visited:
            bias = None
        total = added if bias is None else array_of(bias.constant) + added
        if not storable(result.dtype, total):
            return overflows(node, result.dtype)
        if bias is not None:
            search.visited.add(bias.node)

    def build(region: Region, raw: ir.Value) -> None:
        inputs = list(node.inputs)
        inputs[index] = raw
        inputs[1 - index] = taken.build(region)
        product = region.replace(node, inputs)
        if total is None:
            region.same(result, product.outputs[0])
        elif bias is None:
            region.same(result, add_constant(region, product, total))
        else:
            new, rank = total, len(shape_of(bias.constant))
            while new.ndim > max(1, rank) and new.shape[0] == 1:
                new = new[0]
            constant = derive(region, bias.constant, lambda _old: new, new.shape)
            sums = region.replace(bias.node, [product.outputs[0], constant])
            region.same(bias.node.outputs[0], sums.outputs[0])

    extra = grown + taken.cost
    if total is not None:
        extra += cost.bias_bytes(result) if bias is None else copy_cost(bias.constant, bias.node)
    old_nodes = (node,) if bias is None else (node, bias.node)
    return ForwardPlan(build, (*taken.old, *old_nodes), (node,), extra)
