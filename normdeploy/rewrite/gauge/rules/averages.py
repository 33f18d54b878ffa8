"""Operators that average, take a maximum or interpolate: cells are tied along what is averaged, and carried over.

- Averages whose weights sum to one pass any gauge: AveragePool, GlobalAveragePool, ReduceMean, Resize, GridSample.
- AveragePool that counts the zeros it pads, and GridSample between zeros, average fewer real values there: t = 0.
- ReduceSum over n values: t_y = n t_x, n static. Few values in a sum or a mean may have a t of their own each.
- A maximum needs s > 0: MaxPool, GlobalMaxPool, ReduceMax, ReduceMin.
- Sizes, ReduceL1, ReduceL2, LpPool, GlobalLpPool: s > 0, t = 0.
- CumSum, and Col2Im, whose blocks are those of one channel each: t = 0. ReduceLogSumExp: s = 1.
- TopK, ArgMax, ArgMin, Hardmax: s > 0; the last three write what no gauge changes.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, constant64
from normdeploy.graph.operator_inputs import optional, required
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.gauge import Gauge, fixed
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims


def pool(node: ir.Node, ties: Ties) -> Gauge:
    """Tie a pool over all axes but batch and channels."""
    gauge = ties.operand(node, 0)
    if gauge.rank < 3:
        raise Unfollowed
    gauge = ties.along(gauge, range(2, gauge.rank), Tie(node, "pools over the axis along which it varies"))
    if node.op_type == "AveragePool" and _counts_padding(node):
        gauge = ties.no_shift(gauge, Tie(node, "counts the zeros of its padding, which a shift would change"))
    return _unless_sums(node, ties, gauge)


def _unless_sums(node: ir.Node, ties: Ties, gauge: Gauge) -> Gauge:
    """Restrict a maximum to scales above 0, and a size to these and no shift."""
    if not has(node, Trait.SUMS):
        ties.positive(gauge, Tie(node, "takes a maximum or a size, and needs a scale above 0"))
    if not has(node, Trait.SUMS | Trait.EXACT):
        gauge = ties.no_shift(gauge, Tie(node, "measures sizes, which a shift would change"))
    return gauge


def _counts_padding(node: ir.Node) -> bool:
    if not node.attributes.get_int("count_include_pad", 0):
        return False
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    pads = any(node.attributes.get_ints("pads", ()))
    return pads or automatic.startswith("SAME") or bool(node.attributes.get_int("ceil_mode", 0))


def reduction(node: ir.Node, ties: Ties) -> Gauge:
    """Tie a Reduce operator."""
    gauge, dims = ties.operand(node, 0), known_dims(required(node, 0))
    axes = axes_of(node, len(dims))
    if axes is None:
        raise Unfollowed("reduces along axes that are known at run time only")
    alike, why = axes, Tie(node, "reduces the axis along which it varies")
    apart = [axis for axis in axes if gauge.cells[axis] > 1]
    if has(node, Trait.SUMS) and apart and math.prod(gauge.cells[axis] for axis in apart) <= _FEW:
        gauge, alike = _summed_up(node, ties, gauge, apart, why), [axis for axis in axes if axis not in apart]
    gauge = ties.along(gauge, alike, why)
    if node.op_type == "ReduceLogSumExp":  # of x + t it is t more
        gauge = ties.no_scale(gauge, Tie(node, "sees every scale"))
    else:
        gauge = _unless_sums(node, ties, gauge)
    if node.op_type == "ReduceSum" and alike:
        sizes = [dims[axis] for axis in alike]
        static = [size for size in sizes if isinstance(size, int)]
        if len(static) == len(sizes):
            gauge = gauge.times(float(math.prod(static)))
        else:
            gauge = ties.no_shift(gauge, Tie(node, "sums a number of values that is not known"))
    if not node.attributes.get_int("keepdims", 1):
        gauge = gauge.each(lambda array: np.squeeze(array, tuple(axes)))
    return gauge


_FEW = 16
"""Values of which a sum or a mean looks at each shift by itself."""


def _summed_up(node: ir.Node, ties: Ties, gauge: Gauge, axes: list[int], why: Tie) -> Gauge:
    """Return the gauge of a sum, or a mean, of values of one scale, with size 1 along these axes."""
    ties.along_scale(gauge, axes, why)
    result = ties.fresh_shift(gauge.first(axes))
    places = np.ndindex(*(gauge.cells[axis] for axis in axes))
    at = [{axis: slice(one, one + 1) for axis, one in zip(axes, place, strict=True)} for place in places]
    index = [tuple(chosen.get(axis, slice(None)) for axis in range(gauge.rank)) for chosen in at]
    share = 1 / len(index) if node.op_type == "ReduceMean" else 1.0
    ties.total(result, [(gauge.each(lambda array, cut=cut: array[cut]), share) for cut in index], Tie(node))  # type: ignore[misc] # now
    return result


def running_sum(node: ir.Node, ties: Ties) -> Gauge:
    """Tie CumSum: what it adds up has one scale, and no shift, which would be added up, too."""
    gauge, axis = ties.operand(node, 0), constant64(required(node, 1))
    axes = range(gauge.rank) if axis is None else [int(axis.reshape(-1)[0])]
    gauge = ties.no_shift(gauge, Tie(node, "adds up a shift from place to place"))
    return ties.along(gauge, axes, Tie(node, "sums along the axis along which it varies"))


def picture(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Col2Im: a place of the picture is the sum of all that reach it, of its channel's block of rows."""
    gauge, block = ties.operand(node, 0), constant64(required(node, 2))
    rank, why = len(known_dims(node.outputs[0])), Tie(node, "sums along the axis along which it varies")
    if block is None:
        raise Unfollowed("has a block whose size is computed at run time")
    gauge = ties.no_shift(gauge, Tie(node, "adds up a shift as often as a place is reached"))
    gauge = ties.along(gauge, [2], why)
    batch, rows, _ = gauge.cells
    blocks = (batch, -1, int(block.prod()) if rows > 1 else 1)
    gauge = ties.along(gauge.each(lambda array: array.reshape(blocks)), [2], why)
    return gauge.each(lambda array: array.reshape(*array.shape[:2], *(1,) * (rank - 2)))


def largest(node: ir.Node, ties: Ties) -> Gauge | None:
    """Tie TopK, ArgMax, ArgMin, Hardmax: the order of what is compared stays, and with it the places that are told."""
    gauge = ties.operand(node, 0)
    if gauge.rank == 0:
        raise Unfollowed
    axis = node.attributes.get_int("axis", 0 if node.op_type in ("ArgMax", "ArgMin") else -1)
    gauge = ties.along(gauge, [axis], Tie(node, "compares values along the axis along which it varies"))
    ties.positive(gauge, Tie(node, "compares, and needs a scale above 0: with another the order would turn around"))
    if node.outputs[0].dtype not in FLOATS:
        return None
    return fixed(gauge.rank) if node.op_type == "Hardmax" else gauge


def resize(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Resize: along an axis that it certainly leaves alone, cells stay apart."""
    gauge = ties.operand(node, 0)
    known_dims(node.outputs[0])
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise Unfollowed("crops, and may read outside its input")
    kept = _kept_axes(node, gauge.rank)
    moved = [axis for axis in range(gauge.rank) if axis not in kept]
    return ties.along(gauge, moved, Tie(node, "resizes the axis along which it varies"))


def sample(node: ir.Node, ties: Ties) -> Gauge:
    """Tie GridSample: channel by channel an average of places that the grid names."""
    gauge, grid = ties.operand(node, 0), ties.operand(node, 1)
    ties.pinned(grid, Tie(node, "reads there at which places it samples"))
    gauge = ties.along(gauge, range(2, gauge.rank), Tie(node, "samples along the axis along which it varies"))
    if node.attributes.get_string("padding_mode", "zeros") == "zeros":
        gauge = ties.no_shift(gauge, Tie(node, "takes zeros for what is outside, which a shift would change"))
    return gauge


def _kept_axes(node: ir.Node, rank: int) -> set[int]:
    """Return the axes that are not named, or scaled by exactly 1, or brought to the static size they have.

    The size alone does not tell: 4 values at 1.2 times the density are 4 other values.
    """
    axes = [axis % rank for axis in node.attributes.get_ints("axes", range(rank))]
    kept = set(range(rank)) - set(axes)
    scales, sizes = (constant64(optional(node, at)) for at in (2, 3))
    if scales is not None and scales.size == len(axes):
        return kept | {axis for axis, scale in zip(axes, scales.reshape(-1), strict=True) if scale == 1}
    if optional(node, 2) is not None and scales is None:
        return kept
    dims = dims_of(required(node, 0)) or ()
    if (
        sizes is not None
        and sizes.size == len(axes)
        and node.attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
    ):
        return kept | {axis for axis, size in zip(axes, sizes.reshape(-1), strict=True) if dims[axis] == int(size)}
    result = dims_of(node.outputs[0]) or ()
    if optional(node, 3) is not None:  # computed sizes: a size by a name that both sides have is the same size
        return kept | {axis for axis in axes if dims[axis] is not None and dims[axis] == result[axis]}
    return kept


def axes_of(node: ir.Node, rank: int) -> list[int] | None:
    """Return the axes that a reduction lists (attribute or input 1); all by default, None where they are computed."""
    operand = optional(node, 1)
    if operand is None:
        listed = list(node.attributes.get_ints("axes", ()))
        if listed or node.attributes.get_int("noop_with_empty_axes", 0) != 0:
            return sorted(axis % rank for axis in listed)
        return list(range(rank))
    axes = constant64(operand)
    if axes is None:
        return None
    if axes.size == 0 and not node.attributes.get_int("noop_with_empty_axes", 0):
        return list(range(rank))
    return sorted(int(axis) % rank for axis in axes.reshape(-1))
