r"""How far a sum that cancels may be off: relative to its terms, not to its result.

A float32 sum of k terms carries the rounding of its partial sums. Where the terms cancel, these are far larger than
the result, and a bound relative to the result would call a correct kernel wrong. The size of the terms is taken from
the operands:

* reductions and pools: the same operator on :math:`|x|`; where many of the k terms are equal, each addition of them is
  rounded in the same direction, and a kernel that adds one after the other errs by up to :math:`k u \sum |x| / 2`;
* products (Conv, MatMul, Gemm): :math:`\lVert x\rVert_2 \lVert w\rVert_2` per element, which for operands of random
  sign is :math:`\pi / 2` times the sum of the absolute terms;
* normalizations with statistics: the mean is such a sum, and its error moves a whole row by
  :math:`g\, \delta m / \sqrt{v + \varepsilon}`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import constant_tensor, evaluate_node
from normdeploy.graph.linear_view import Form, Linear, linear_of
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.bounds.hashing import coherent_signs
from normdeploy.verification.bounds.interpolation import interpolates

Values = Sequence[Tensor | None]

SHARE = 0.25
"""Rounding of the partial sums over u times the sum of absolute terms. For k random terms of mixed sign, added in
order, it is 0.4; runtimes add in lanes and stay below half of that."""

_PRODUCT = 0.5 * 2 / math.pi
"""The same for products, over the product of the norms: a filter that cancels on a constant image errs alike
everywhere, and nothing averages."""

_MANTISSA = 23
"""Bits of float32's mantissa, the hidden one left aside."""

_EQUAL = 2.0**-18
"""Neighbours that differ by less, relative to the row, are equal for float32."""

_LANES = 32
"""Adding one number again and again rounds the same way each time, so the error of a (largely) constant row's mean
grows with the number of additions, not with its root: k additions in 8 lanes, a quarter of u each."""


def is_looked_at(node: ir.Node) -> bool:
    """Tell whether an operator's operands say more of its rounding than its result does."""
    return (
        has(node, Trait.SUMS)
        or _product(node) is not None
        or _subtracts_mean(node)
        or is_standard(node, "Sum", "BatchNormalization")
        or interpolates(node)
    )


def _product(node: ir.Node) -> Linear | None:
    """Return a convolution or matrix product of floats; None for any other operator."""
    linear = linear_of(node)
    if linear is None or linear.form not in (Form.CONVOLUTION, Form.PRODUCT) or is_standard(node, "DeformConv"):
        return None
    return None if linear.activation or linear.weight_steps is not None else linear


def _subtracts_mean(node: ir.Node) -> bool:
    """Tell whether a norm of known rows subtracts their mean (those of a MeanVarianceNormalization are any axes)."""
    return has(node, Trait.CENTRES) and has(node, Trait.WEIGHS)


def terms(node: ir.Node, inputs: Values, length: int, *, seed: int = 0) -> Tensor | None:
    """Return, per element of a result, how large its terms make an error of one u; None where nothing cancels.

    Args:
        node: the operator. inputs: its operands, None where absent or not known. length: k, the number of terms.
        seed: of the directions in which the terms of a long sum are rounded.
    """
    x = inputs[0] if inputs else None
    if x is None or not x.is_floating_point():
        return None
    if is_standard(node, "BatchNormalization"):
        return _affine_terms(node, inputs)
    product, several = _product(node), is_standard(node, "Sum")
    if length <= 2 and product is None and not several:
        return None  # one addition is rounded relative to its result
    if has(node, Trait.SUMS):
        try:
            size = SHARE * evaluate_node(node, [x.abs(), *inputs[1:]], dtype=x.dtype)[0]
            return size * _repeated(node, inputs, x, length, seed)
        except GraphError:  # an operand that is not known here
            return None
    if several:
        known = [value.abs() for value in inputs if value is not None]
        return SHARE * functools.reduce(torch.add, known) if len(known) > 2 else None
    if product is None:
        return None
    return _matrix_terms(product, inputs) if product.form is Form.PRODUCT else _convolution_terms(product, inputs)


def _repeated(node: ir.Node, inputs: Values, x: Tensor, length: int, seed: int) -> Tensor:
    """Return how many additions err in one direction, beyond what chance makes of k directions; at least 1.

    Added one after the other, k equal terms err by up to k / 2 u of their sum: each addition by u of a partial sum,
    half the sum on average. :data:`SHARE` of it as noise, four times its RMS allowed, is just that.
    """
    bits = min(length.bit_length() - 1, _MANTISSA)
    signs = coherent_signs(x, bits, seed)
    one, all_of = (evaluate_node(node, [v, *inputs[1:]], dtype=x.dtype)[0] for v in (signs, torch.ones_like(x)))
    return (one.abs() / all_of * length - 2 * math.sqrt(length)).nan_to_num(nan=1.0).clamp(min=1.0, max=length)


def of_one_size(node: ir.Node, index: int, operand: Tensor) -> bool:
    """Tell whether the terms of each of a product's sums take one size from an operand, zeros aside (signs, ternary).

    Args:
        node: the product. index: which operand. operand: its value, whole.
    """
    linear = _product(node)
    if linear is None or not operand.is_floating_point() or not operand.numel():
        return False
    rows = operand.unsqueeze(0)
    if index == linear.weight and operand.dim() >= 2:
        axis = 0 if linear.form is Form.CONVOLUTION else linear.output_axis(operand.dim())
        if axis is None:
            return False
        rows = operand.movedim(axis, 0)
    return _each_of_one_size(rows[:1]) and _each_of_one_size(rows)  # one row settles nearly all


def _each_of_one_size(rows: Tensor) -> bool:
    sizes = rows.flatten(1).abs() if rows.dim() > 1 else rows.reshape(1, -1).abs()
    largest = sizes.amax(1, keepdim=True)
    return bool(((sizes <= _EQUAL * largest) | (sizes >= (1 - _EQUAL) * largest)).all())


def drift(node: ir.Node, inputs: Values, length: int, known: Callable[[int], bool]) -> float:
    """Return how far a product of terms of one size errs, in u of its result; 0 for any other operator.

    Its partial sums are multiples of that size, so that additions are rounded alike wherever they pass by again: k of
    them, up to u each, of a partial sum that is half the result on average, all in one direction. An eighth of k as
    noise allows 0.29 k (four times the RMS of what is uniform up to that); sums in order were seen to err by 0.2 k.

    Args:
        node, inputs, length: as for :func:`terms`. known: tells whether a constant operand is of one size.
    """
    linear = _product(node)
    if linear is None or length <= 16:
        return 0.0
    for index in (linear.weight, linear.data):
        value, operand = node.inputs[index], inputs[index]
        whole = value is not None and constant_tensor(value) is None and operand is not None
        if not (of_one_size(node, index, operand) if whole and operand is not None else known(index)):
            return 0.0
    return length / 8


def _norm(x: Tensor, dim: int, *, keepdim: bool = False) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
    return found


def _affine_terms(node: ir.Node, inputs: Values) -> Tensor | None:
    """Return |a x| + |c| of a BatchNormalization in evaluation: runtimes compute it as a x + c."""
    training = node.attributes.get_int("training_mode", 0) != 0
    if training or len(inputs) < 5 or any(value is None for value in inputs[:5]):
        return None
    x, scale, shift, mean, var = (value for value in inputs[:5] if value is not None)
    a = scale / torch.sqrt(var + node.attributes.get_float("epsilon", 1e-5))
    c = shift - mean * a
    along = (-1, *([1] * (x.dim() - 2)))
    return 0.5 * (x.abs() * a.abs().reshape(along) + c.abs().reshape(along))


def _matrix_terms(linear: Linear, inputs: Values) -> Tensor | None:
    x, w = inputs[linear.data], inputs[linear.weight]
    if x is None or w is None or x.dim() < 2 or w.dim() < 2:
        return None
    rows = _norm(x, dim=linear.data_axis(x.dim()) - x.dim())
    columns = _norm(w, dim=linear.input_axis(w.dim()) - w.dim())
    size = rows.unsqueeze(-1) * columns.unsqueeze(-2)
    size = size.transpose(-1, -2) if linear.turned_result else size
    addend = None if linear.bias is None or linear.bias >= len(inputs) else inputs[linear.bias]
    factor = _PRODUCT * abs(linear.alpha)
    return factor * size if addend is None else factor * size + 0.5 * addend.abs()


def _convolution_terms(linear: Linear, inputs: Values) -> Tensor | None:
    """Return the patch norms (one channel of squares, summed by a convolution with ones) times the filters' norms."""
    x, w = inputs[0], inputs[1]
    if x is None or w is None or w.dim() < 3:
        return None
    groups = linear.groups
    squares = x.square().reshape(x.shape[0], groups, -1, *x.shape[2:]).sum(2)
    ones = torch.ones(groups, 1, *w.shape[2:], dtype=x.dtype)
    patches = evaluate_node(linear.node, [squares, ones], dtype=x.dtype)[0].clamp_min(0).sqrt()
    filters = _norm(w.reshape(w.shape[0], -1), dim=1).reshape(-1, *([1] * (x.dim() - 2)))
    return _PRODUCT * patches.repeat_interleave(w.shape[0] // groups, 1) * filters


def condensed(node: ir.Node, index: int, weight: Tensor) -> Tensor:
    """Return a small stand-in for a product's constant operand, with the same norms along the summed axes.

    Args:
        node: the product. index: which operand. weight: its value.
    """
    linear = _product(node)
    if linear is None:
        return weight
    if linear.form is Form.PRODUCT and index in (linear.data, linear.weight) and weight.dim() >= 2:
        axis = linear.input_axis if index == linear.weight else linear.data_axis
        return _norm(weight, dim=axis(weight.dim()), keepdim=True)
    if linear.form is Form.CONVOLUTION and index == linear.weight and weight.dim() >= 3:
        norms = _norm(weight.reshape(weight.shape[0], -1), dim=1)
        window = weight.shape[2:]
        shaped = (norms / math.sqrt(math.prod(window))).reshape(-1, *([1] * (weight.dim() - 1)))
        return shaped.expand(-1, 1, *window).contiguous()
    return weight


def row_shift(node: ir.Node, inputs: Values, length: int) -> tuple[Tensor, Tensor] | None:
    """Return what one u of a row's mean moves each element by, and the row means; None where no mean is subtracted.

    Args:
        node, inputs: as for :func:`terms`. length: elements per mean.
    """
    x = inputs[0] if inputs else None
    if not _subtracts_mean(node) or x is None or not x.is_floating_point() or x.dim() < 2 or not x.numel():
        return None
    groups = node.attributes.get_int("num_groups", 0)
    by_row = has(node, Trait.BY_ROW)
    if by_row:
        first = node.attributes.get_int("axis", -1) % x.dim()
        rows, shape = x.reshape(*x.shape[:first], -1), (*x.shape[:first], *([1] * (x.dim() - first)))
    elif groups:
        rows, shape = x.reshape(x.shape[0], groups, -1), (x.shape[0], x.shape[1], *([1] * (x.dim() - 2)))
    else:
        rows, shape = x.reshape(*x.shape[:2], -1), (*x.shape[:2], *([1] * (x.dim() - 2)))
    mean = rows.mean(-1)
    typical = rows.abs().mean(-1)
    repeated = (rows.diff(dim=-1).abs() <= _EQUAL * typical.unsqueeze(-1)).to(rows.dtype).mean(-1)
    size = torch.maximum(mean.abs() * max(1.0, math.sqrt(length) / 4), SHARE * typical)
    size = torch.maximum(size, typical * repeated * (length / _LANES))
    size = size / torch.sqrt(rows.var(-1, correction=0) + node.attributes.get_float("epsilon", 1e-5))
    if groups:
        size, mean = (v.repeat_interleave(x.shape[1] // groups, 1) for v in (size, mean))
    size, mean = size.reshape(shape), mean.reshape(shape)
    scale = inputs[1] if len(inputs) > 1 else None
    if scale is not None:
        size = size * (scale if by_row else scale.reshape(-1, *([1] * (x.dim() - 2))))
    return size.expand_as(x), mean.expand_as(x)
