"""MatMul and Gemm: matrix products by a constant absorb, those of two computed values multiply their scales.

By a constant, with both operands oriented so that y[r, n] = alpha sum_k x[r, k] W[k, n] + beta C[r, n]::

    s_x[r, k] = R[r] c[k],   s_y[r, n] = R[r] d[n],   W'[k, n] = W[k, n] c[k] / d[n]
    C'[r, n] = (beta C + alpha sum_k t_x[r, k] W[k, n] - t_y[r, n]) / s_y[r, n],   beta' = 1

A scale that varies along the rows, R, passes through. C is the bias Add behind a MatMul where there is one; else a new
Add (half a pass). One that is stored in integers takes what :mod:`.stored_bias` says. Axes that a stack of matrices has
itself are absorbed like k and n.

That of two computed values, or of a vector, is an Einsum (:mod:`.einsum`).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import compress
from normdeploy.graph.operator_inputs import array_of, optional, required
from normdeploy.graph.weight import Weight
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.operator_edit import Edit
from normdeploy.rewrite.gauge.rules import einsum
from normdeploy.rewrite.gauge.rules.elementwise import write_constants
from normdeploy.rewrite.gauge.rules.oriented_product import Product, product_of
from normdeploy.rewrite.gauge.rules.stored_bias import move_stored_bias, stored_bias, with_stored_bias
from normdeploy.rewrite.gauge.rules.weights import divided, put, require_small, rescale
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed

MANY = 4096
"""Cells of a product beyond which its gauge varies along rows alone, where the one in front of it does."""


def _turn(gauge: Gauge, turned: bool) -> Gauge:
    return gauge.each(lambda array: _oriented(array, turned))


def tie(node: ir.Node, ties: Ties) -> Gauge | None:
    """Tie a MatMul or Gemm."""
    product = product_of(node)
    if product is None:
        if node.op_type == "Gemm":
            raise Unfollowed("has a weight that is computed at run time")
        return einsum.tie(node, ties)
    gauge = ties.operand(node, product.x)
    if product.weight.quantized is not None and product.weight.value in ties.of:
        ties.pinned(ties.of[product.weight.value], Tie(node, "reads it as its weight"))
    shape = product.weight.shape
    weight = [*shape[:-2], shape[product.summed], shape[product.written]]
    rows_alike = _rows_alike(product)
    if rows_alike is not None:
        gauge = _turn(ties.along(_turn(gauge, product.linear.turned_data), [0], rows_alike), product.linear.turned_data)
    x = _turn(gauge, product.linear.turned_data).wider(product.rank)
    stack = [1] * (product.rank - len(weight)) + list(weight[:-2])
    rows = [axis for axis in range(product.rank - 1) if x.cells[axis] > 1 and (axis >= len(stack) or stack[axis] == 1)]
    own = [
        max(size, cell) if axis not in rows else 1
        for axis, (size, cell) in enumerate(zip(stack, x.cells, strict=False))
    ]
    cells = (*own, 1, weight[-1]) if product.rank >= 2 else (weight[-1],)
    passing = tuple(x.cells[axis] if axis in rows else 1 for axis in range(product.rank))
    shown = tuple(max(one, other) for one, other in zip(cells, passing, strict=True))
    if rows and math.prod(shown) > MANY:  # what varies along rows goes on; what varies along columns stays behind
        cells, shown = (1,) * product.rank, passing
    result = ties.fresh(shown, slack=True)
    if math.prod(passing) > 1:
        through = ties.fresh(passing)
        inside = ties.fresh(tuple(1 if axis in rows else size for axis, size in enumerate(x.cells)), slack=True)
        behind = ties.fresh(cells, slack=True)
        why = Tie(node, "sums over one axis and passes the others on")
        ties.product(x, [(through.spread(x.cells), 1.0), (inside.spread(x.cells), 1.0)], why)
        ties.product(result, [(through.spread(shown), 1.0), (behind.spread(shown), 1.0)], why)
        ties.ports[node, -1], ties.ports[node, -2] = inside, behind
        ties.passed.append(product.result)
    else:
        inside, behind = x, result
        ties.ports[node, -1], ties.ports[node, -2] = x, result
    stored = stored_bias(product.linear)
    if stored is not None:
        behind = result = with_stored_bias(product.linear, ties, x, result, stored)
    elif node.op_type == "Gemm" and product.addend is None and optional(node, 2) is not None:
        why = Tie(node, "has an addend that is computed at run time")
        ties.no_shift(x, why)
        ties.pinned(result, why)
        if optional(node, 2) in ties.of:
            ties.pinned(ties.operand(node, 2), why)
    _restrict_steps(product, ties, inside, behind)
    ties.of[product.result] = _turn(result, product.linear.turned_result)
    if product.addend is not None and product.addend[0] is not node:
        ties.parts[product.addend[0]] = node
    return None


def _rows_alike(product: Product) -> Tie | None:
    """Return why the rows of a product have one gauge; None where each may have its own."""
    node = product.node
    if node.op_type != "Gemm":
        return None
    if not all(isinstance(size, int) for size in dims_of(required(node, product.x)) or ()):
        return Tie(node, "has rows of unknown number")
    return Tie(node, "has a bias stored in integers for all of its rows") if stored_bias(product.linear) else None


def _restrict_steps(product: Product, ties: Ties, inside: Gauge, behind: Gauge) -> None:
    weight = product.weight
    if weight.quantized is None:
        return
    rank = len(weight.shape)
    k, n = product.summed, product.written
    free = weight.free_axes(n)
    why = Tie(product.node, "has integer weights whose steps do not vary along with it")
    stacked = [axis - rank for axis in range(rank - 2) if axis not in free]
    ties.along_scale(inside, [*stacked, *([] if k in free else [-1])] if inside.rank >= rank else [-1], why)
    ties.along_scale(behind, [*stacked, *([] if n in free else [-1])], why)


def write(edit: Edit) -> None:
    """Write the weight and the bias; a MatMul without one gets an Add where it needs it."""
    product = product_of(edit.node)
    if product is None:
        write_constants(edit)
        return
    ties, weight = edit.at.ties, product.weight
    inside, behind = (compress(edit.at.scale(ties.ports[edit.node, at])) for at in (-1, -2))
    factor, divisor = _fit(inside.swapaxes(-1, -2), weight.shape), _fit(behind, weight.shape)
    factor, divisor = (_oriented(array, product.linear.turned_weight) for array in (factor, divisor))
    scaled = partial(rescale, edit, product.linear.weight, weight, factor, divisor, rows=(product.summed,))
    scale, shift = (
        _oriented(array, product.linear.turned_result) for array in edit.result(0, product.result.producer())
    )
    moved = _oriented(handed_on(product, edit.operand(product.x)[1]), product.linear.turned_result)
    stored = stored_bias(product.linear)
    if stored is not None:
        scaled()
        outs = weight.shape[product.written]
        added, s = (np.broadcast_to(array.reshape(-1), (outs,)) for array in (moved - shift, scale))
        move_stored_bias(edit, product.linear, stored, added, s)
        return
    if edit.node.op_type == "Gemm" and product.addend is None and optional(edit.node, 2) is not None:
        scaled()
        return  # a computed addend, which allows no change
    old = _bias(product)
    added, scale = (_oriented(array, product.linear.turned_result) for array in (moved - shift, scale))
    total = divided(old + added, scale)
    scaled(bias=_beside(product, total))
    if (total.any() or product.addend is not None) and _changes(total, old):
        _write_bias(edit, product, total)


def _fit(array: Floats, shape: tuple[int, ...]) -> Floats:
    """Drop leading axes of size 1 that the weight does not have."""
    return array.reshape(array.shape[len(array.shape) - len(shape) :]) if array.ndim > len(shape) else array


def _oriented(array: Floats, turned: bool) -> Floats:
    return array.swapaxes(-1, -2) if turned else array


def handed_on(product: Product, shift: Floats) -> Floats:
    """Return what a product makes of a shift of what it reads."""
    t = _oriented(shift, product.linear.turned_data)
    made = product.linear.alpha * _sum(product.weight, product, t) if t.any() else np.zeros((1,) * product.rank)
    return _oriented(made, product.linear.turned_result)


def _sum(weight: Weight, product: Product, shift: Floats) -> Floats:
    """Return sum_k t[.., k] W[k, n]; in pieces where t does not vary along rows."""
    if math.prod(shift.shape) == shift.shape[-1] and len(weight.shape) == 2:
        vector = shift.reshape([-1 if axis == product.summed else 1 for axis in (0, 1)])
        found = weight.sum(np.broadcast_to(vector, weight.shape) if vector.size == 1 else vector, [product.summed])
        return found.reshape(*(1,) * (product.rank - 1), -1)
    matrix = _oriented(weight.array(), product.linear.turned_weight)
    wide = np.broadcast_to(shift, (*shift.shape[:-1], matrix.shape[-2]))
    return np.asarray(wide @ matrix)


def _bias(product: Product) -> Floats:
    """Return what is added so far, with the axes of the result."""
    if product.addend is None:
        return np.zeros((1,) * product.rank)
    holder, index = product.addend
    old = array_of(required(holder, index))
    old = old.reshape((1,) * (product.rank - old.ndim) + old.shape)
    return old * product.linear.beta if holder is product.node else old


def _beside(product: Product, bias: Floats) -> Floats:
    """Return the least that is added to each column of the weight, as large as what the product makes of it."""
    shown = np.abs(_oriented(bias, product.linear.turned_result))
    least = np.asarray(shown.min(axis=tuple(range(shown.ndim - 1))) / abs(product.linear.alpha))
    return least.reshape([-1 if axis == product.written else 1 for axis in range(len(product.weight.shape))])


def _changes(total: Floats, old: Floats) -> bool:
    shape = np.broadcast_shapes(total.shape, old.shape)
    return not np.array_equal(np.broadcast_to(total, shape), np.broadcast_to(old, shape))


def _write_bias(edit: Edit, product: Product, total: Floats) -> None:
    node, weight = edit.node, product.weight
    holder, index = product.addend or (node, 2)
    bias = optional(holder, index) if product.addend is not None else None
    least = 1 if bias is None or bias.shape is None else max(1, bias.shape.rank())
    trimmed = total
    while trimmed.ndim > least and trimmed.shape[0] == 1:
        trimmed = trimmed[0]
    if product.addend is None and node.op_type == "MatMul":
        require_small(node, weight.dtype, trimmed)
        edit.absorbs = True
        edit.add_behind(lambda: trimmed, trimmed.shape, weight.dtype)
        edit.cost += (trimmed.size - trimmed.shape[-1]) * weight.dtype.itemsize
        return
    put(edit, index, trimmed, weight.dtype, name=f"{weight.stem}.bias", holder=holder)
    if node.op_type == "Gemm":
        edit.attribute("beta")
