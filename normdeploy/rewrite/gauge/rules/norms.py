"""Norms that compute statistics, y = g n(x) + b: free behind them, nearly tied in front of them.

Behind: g' = g / s_y, b' = (b - t_y) / s_y, along the axes of g and b; an RMSNormalization has no b.

In front: n(s x + t; e) = n(x; e / s^2) for one s > 0, since epsilon is one number; t is cancelled by the mean where it
is one for all that one statistic averages over (a bias in front of an InstanceNormalization is dead). An
RMSNormalization takes off no mean: t = 0. Where somebody reads the statistics themselves, nothing changes in front.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.graph import is_constant
from normdeploy.graph.edit import is_read
from normdeploy.graph.operator_inputs import array_of, optional, required, shape_of
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.affine.axes import Dims
from normdeploy.rewrite.affine.constant import FORMATS, loses_digits
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.gauge import Gauge, fixed
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused
from normdeploy.rewrite.gauge.rules.weights import divided, put, require_digits, require_small
from normdeploy.rewrite.gauge.ties import Tie, Ties, known_dims

MANY = 4096
"""Cells of a norm over several axes beyond which its gauge varies along the first of them alone."""

_, _SMALLEST, _LARGEST = FORMATS[ir.DataType.FLOAT]


def _spanned(node: ir.Node, rank: int) -> tuple[int, ...]:
    """Return the axes of x that g and b span."""
    return tuple(range(node.attributes.get_int("axis", -1) % rank, rank)) if has(node, Trait.BY_ROW) else (1,)


def spanned_sizes(node: ir.Node, rank: int) -> dict[int, int]:
    """Return the sizes of the axes of x that g spans, as its own sizes tell: more than one number is not broadcast."""
    gain = optional(node, 1)
    shape = shape_of(gain) if gain is not None and is_constant(gain) else ()
    return {axis: size for axis, size in zip(reversed(_spanned(node, rank)), reversed(shape), strict=False) if size > 1}


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie LayerNormalization, RMSNormalization, InstanceNormalization, GroupNormalization."""
    gauge, dims = ties.operand(node, 0), known_dims(required(node, 0))
    for index in (1, 2):
        value = optional(node, index)
        if value is not None and value in ties.of:
            ties.pinned(ties.of[value], Tie(node, "reads it as its scale or bias"))
    _front(node, ties, gauge)
    known = spanned_sizes(node, len(dims))
    for value in node.outputs[1:]:
        if value.shape is not None:
            ties.of[value] = fixed(value.shape.rank())
    sizes = [dim if isinstance(dim, int) else known.get(axis, dim) for axis, dim in enumerate(dims)]
    return _behind(node, ties, sizes)


def _front(node: ir.Node, ties: Ties, gauge: Gauge) -> None:
    if is_read(*node.outputs[1:]):
        ties.pinned(gauge, Tie(node, "gives away its statistics"))
        return
    ties.along_scale(gauge, range(gauge.rank), Tie(node, "has one epsilon for all, so that one scale can pass"))
    ties.positive(gauge, Tie(node, "divides by a size, and needs a scale above 0"))
    if node.op_type == "RMSNormalization":
        ties.no_shift(gauge, Tie(node, "subtracts no mean that could cancel a shift"))
        return
    why = Tie(node, "averages over the axis along which it varies")
    if has(node, Trait.BY_ROW):
        ties.along_shift(gauge, _spanned(node, gauge.rank), why)
        return
    ties.along_shift(gauge, range(2, gauge.rank), why)
    groups = node.attributes.get_int("num_groups", 1) if node.op_type == "GroupNormalization" else gauge.cells[1]
    if gauge.cells[1] > groups:
        first = gauge.each(
            lambda array: np.take(array, [0], axis=1) if array.shape[1] == 1 else _first_of_groups(array, groups)
        )
        ties.same_shift(gauge, first, why)


def _first_of_groups(array: np.ndarray, groups: int) -> np.ndarray:
    size = array.shape[1] // groups
    return np.repeat(array[:, ::size], size, axis=1)


def _behind(node: ir.Node, ties: Ties, dims: Dims) -> Gauge:
    rank = len(dims)
    gain, bias = required(node, 1), optional(node, 2)
    spanned = _spanned(node, rank)
    sizes = [dims[axis] for axis in spanned]
    whole = is_constant(gain) and list(shape_of(gain)) == sizes and (bias is None or is_constant(bias))
    if not whole or (bias is not None and list(shape_of(bias)) != sizes):
        ties.refuse(node, "has a scale or bias that is computed at run time, or does not span what it normalizes")
        return fixed(rank)
    if math.prod(shape_of(gain)) > MANY:
        spanned = spanned[:1]  # the channels: what varies over all that is averaged is no map of a norm's
    own = dict(zip(_spanned(node, rank), shape_of(gain), strict=True))
    result = ties.fresh([own[axis] if axis in spanned else 1 for axis in range(rank)], slack=True)
    if node.op_type == "RMSNormalization":
        result = ties.no_shift(result, Tie(node, "has no bias that could take a shift"))
    return result


def write(edit: Edit) -> None:
    """Write scale, bias and epsilon."""
    node = edit.node
    _write_epsilon(edit)
    gain, bias = required(node, 1), optional(node, 2)
    scale, shift = edit.result()
    if (scale == 1).all() and (shift == 0).all():
        return
    shape = shape_of(gain)
    spanned = _spanned(node, scale.ndim)
    scale, shift = (
        np.broadcast_to(array.reshape([array.shape[axis] for axis in spanned]), shape) for array in (scale, shift)
    )
    old = np.zeros(shape) if bias is None else array_of(bias)
    new_gain, new_bias = divided(array_of(gain), scale), divided(old - shift, scale)
    assert gain.dtype is not None
    require_small(node, gain.dtype, new_gain, new_bias)
    if not (scale == 1).all():
        require_digits(node, gain.dtype, loses_digits(gain.dtype, new_gain))
        put(edit, 1, new_gain, gain.dtype, name="")
    if not np.array_equal(new_bias, old):
        put(edit, 2, new_bias, gain.dtype, name=f"{str(gain.name).removesuffix('.weight')}.bias")


def _write_epsilon(edit: Edit) -> None:
    scale, shift = edit.operand(0)
    factor = float(scale.reshape(-1)[0])
    if shift.any():
        edit.absorbs = True
    if factor == 1:
        return
    node = edit.node
    written = node.attributes.get_float("epsilon", 1e-5)
    epsilon = written / factor / factor
    if not _SMALLEST <= factor * factor <= _LARGEST or (written and not _SMALLEST <= epsilon <= _LARGEST):
        raise Refused(
            node, f"a scale of {factor:.3g} takes the epsilon of {describe(node)} out of the range of float32"
        )
    edit.absorbs = True
    edit.attribute(ir.AttrFloat32("epsilon", epsilon))
