r"""How far a sum that cancels may be off: relative to its terms, not to its result.

A float32 sum of k terms carries the rounding of its partial sums. Where the terms cancel, these are far larger than
the result, and a bound relative to the result would call a correct kernel wrong. The size of the terms is taken from
the operands:

* reductions and pools: the same operator on :math:`|x|`;
* products (Conv, MatMul, Gemm): :math:`\lVert x\rVert_2 \lVert w\rVert_2` per element, which for operands of random
  sign is :math:`\pi / 2` times the sum of the absolute terms;
* normalizations with statistics: the mean is such a sum, and its error moves a whole row by
  :math:`g\, \delta m / \sqrt{v + \varepsilon}`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import evaluate_node

Values = Sequence[Tensor | None]

SHARE = 0.25
"""Rounding of the partial sums over u times the sum of absolute terms. For k random terms of mixed sign, added in
order, it is 0.4; runtimes add in lanes and stay below half of that."""

_PRODUCT = 0.5 * 2 / math.pi
"""The same for products, over the product of the norms: a filter that cancels on a constant image errs alike
everywhere, and nothing averages."""

_EQUAL = 2.0**-18
"""Neighbours that differ by less, relative to the row, are equal for float32."""

_LANES = 32
"""Adding one number again and again rounds the same way each time, so the error of a (largely) constant row's mean
grows with the number of additions, not with its root: k additions in 8 lanes, a quarter of u each."""

_MEANS = frozenset({"ReduceMean", "ReduceSum", "GlobalAveragePool", "AveragePool", "CumSum", "Resize", "Upsample"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
_CENTRED = frozenset({"LayerNormalization", "InstanceNormalization", "GroupNormalization"})
CANCELLING = _MEANS | _PRODUCTS | _CENTRED | {"Sum", "BatchNormalization"}
"""Operators whose operands are looked at."""


def terms(node: ir.Node, inputs: Values, length: int) -> Tensor | None:
    """Return, per element of a result, how large its terms make an error of one u; None where nothing cancels.

    Args:
        node: the operator. inputs: its operands, None where absent or not known. length: k, the number of terms.
    """
    x = inputs[0] if inputs else None
    if x is None or not x.is_floating_point():
        return None
    if node.op_type == "BatchNormalization":
        return _affine_terms(node, inputs)
    if length <= 2 and node.op_type not in _PRODUCTS and node.op_type != "Sum":
        return None  # one addition is rounded relative to its result
    if node.op_type in _MEANS:
        try:
            return SHARE * evaluate_node(node, [x.abs(), *inputs[1:]], dtype=x.dtype)[0]
        except GraphError:  # an operand that is not known here
            return None
    if node.op_type == "Sum":
        known = [value.abs() for value in inputs if value is not None]
        return SHARE * functools.reduce(torch.add, known) if len(known) > 2 else None
    if node.op_type in ("MatMul", "Gemm"):
        return _matrix_terms(node, inputs)
    return _convolution_terms(node, inputs) if node.op_type == "Conv" else None


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


def _matrix_terms(node: ir.Node, inputs: Values) -> Tensor | None:
    x, w = inputs[0], inputs[1]
    if x is None or w is None or x.dim() < 2 or w.dim() < 2:
        return None
    flip_x, flip_w = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    rows = _norm(x, dim=-2 if flip_x else -1)
    columns = _norm(w, dim=-1 if flip_w else -2)
    size = rows.unsqueeze(-1) * columns.unsqueeze(-2)
    addend = inputs[2] if len(inputs) > 2 else None
    factor = _PRODUCT * abs(node.attributes.get_float("alpha", 1.0))
    return factor * size if addend is None else factor * size + 0.5 * addend.abs()


def _convolution_terms(node: ir.Node, inputs: Values) -> Tensor | None:
    """Return the patch norms (one channel of squares, summed by a convolution with ones) times the filters' norms."""
    x, w = inputs[0], inputs[1]
    if x is None or w is None or w.dim() < 3:
        return None
    groups = node.attributes.get_int("group", 1)
    squares = x.square().reshape(x.shape[0], groups, -1, *x.shape[2:]).sum(2)
    ones = torch.ones(groups, 1, *w.shape[2:], dtype=x.dtype)
    patches = evaluate_node(node, [squares, ones], dtype=x.dtype)[0].clamp_min(0).sqrt()
    filters = _norm(w.reshape(w.shape[0], -1), dim=1).reshape(-1, *([1] * (x.dim() - 2)))
    return _PRODUCT * patches.repeat_interleave(w.shape[0] // groups, 1) * filters


def condensed(node: ir.Node, index: int, weight: Tensor) -> Tensor:
    """Return a small stand-in for a product's constant operand, with the same norms along the summed axes.

    Args:
        node: the product. index: which operand. weight: its value.
    """
    if node.op_type in ("MatMul", "Gemm") and index < 2 and weight.dim() >= 2:
        flipped = node.attributes.get_int("transA" if index == 0 else "transB", 0)
        return _norm(weight, dim=-1 if (index == 0) != bool(flipped) else -2, keepdim=True)
    if node.op_type == "Conv" and index == 1 and weight.dim() >= 3:
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
    if node.op_type not in _CENTRED or x is None or not x.is_floating_point() or x.dim() < 2 or not x.numel():
        return None
    groups = node.attributes.get_int("num_groups", 0)
    if node.op_type == "LayerNormalization":
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
        across = node.op_type != "LayerNormalization"
        size = size * (scale.reshape(-1, *([1] * (x.dim() - 2))) if across else scale)
    return size.expand_as(x), mean.expand_as(x)
