"""Write a normalization as the operator that onnxruntime's CPU provider runs fastest (docs/norm-operators.md).

============================================  =====================================================================
statistics over                               operator
============================================  =====================================================================
the last axes                                 LayerNormalization; RMSNormalization without a mean (operator set 23)
all axes after the channel, one per channel   InstanceNormalization
slices of the channels and all axes after     Reshape, InstanceNormalization, Reshape (GroupNormalization is slower
                                              and loses all digits at an offset)
other axes                                    Transpose, LayerNormalization or RMSNormalization, Transpose
the last axes, epsilon outside the root       LayerNormalization and its 1/s, one product
other axes, epsilon outside the root          the same between two Transposes
slices of the channels, epsilon outside       the same between two Reshapes
a variance of n - 1, n dynamic                mean, difference, square, mean, division; n read from the shape
============================================  =====================================================================

Scale and shift are always of the full normalized shape: one that broadcasts sends LayerNormalization down a path four
times slower.

Where the runtime has no kernel for the data's type the form changes: InstanceNormalization exists for float32 and
float16 only, so that LayerNormalization stands for it in float64; in bfloat16, which has LayerNormalization and little
else, the other forms are computed in float32 between two Casts, as are epsilon outside the root and a dynamic n - 1 in
float16.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.rewrite.affine.constant import loses_digits
from normdeploy.rewrite.recognise.builder import Builder
from normdeploy.rewrite.recognise.hypothesis import Blocks, Norm

Dim = int | ir.SymbolicDim

TINY = 1e-36
"""Epsilon where there is none to add: small enough to be nothing, large enough for float32."""


INSTANCE_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
"""What the runtime has an InstanceNormalization for."""

_SMALLEST = 1e-13
"""Epsilons below this, added to a deviation, would feel TINY: it is 1e-10 of their square."""

_FAR = 1e30
"""How far from 1 scale / epsilon may be in float32: it meets numbers up to the root of a row's length."""

_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def needs_rms(norm: Norm) -> bool:
    """Tell whether the operator for a normalization is RMSNormalization."""
    return not norm.centred and not norm.outside


def kind_of(norm: Norm, dims: list[Dim], *, instance: bool = False) -> str:
    """Return what a normalization is called in the ledger."""
    if norm.blocks.split is not None:
        return "GroupNormalization"
    if not norm.centred:
        return "RMSNormalization"
    return "InstanceNormalization" if is_instance(norm, dims, instance) else "LayerNormalization"


def emit(norm: Norm, x: ir.Value, builder: Builder, *, instance: bool = False) -> ir.Value:
    """Append the operators of a normalization of ``x``.

    Args:
        norm: scale and shift of size 1 along axes on which they are constant; static along the others.
        x: of known rank.
        builder: takes nodes and constants.
        instance: prefer InstanceNormalization where it and LayerNormalization both say it.

    Returns:
        the normalized value, of x's shape.
    """
    if x.shape is None:
        raise ValueError(f"value {x.name!r} has no known rank")
    dims = list(x.shape)
    rank = len(dims)
    if _needs_float32(norm, dims, builder.dtype, instance):
        return _emit_in_float32(norm, x, builder, instance=instance)
    if norm.blocks.split is not None:
        return _emit_grouped(norm, x, builder, dims)
    if norm.correction:
        return _emit_steps(norm, x, builder)
    if is_instance(norm, dims, instance) and builder.dtype in INSTANCE_TYPES:
        channels = dims[1] if isinstance(dims[1], int) else 1
        scale = np.broadcast_to(norm.scale.reshape(-1), (channels,))
        shift = np.broadcast_to(norm.shift.reshape(-1), (channels,))
        inputs = [x, builder.constant("scale", scale), builder.constant("shift", shift)]
        return builder.op("InstanceNormalization", inputs, epsilon=norm.epsilon)
    static = all(isinstance(dims[axis], int) for axis in norm.blocks.axes)
    if norm.outside and not (norm.centred and static and builder.dtype == ir.DataType.FLOAT and _divides(norm)):
        return _emit_steps(norm, x, builder)
    order = [axis for axis in range(rank) if axis not in norm.blocks.axes] + list(norm.blocks.axes)
    emit_last = _emit_outside if norm.outside else _emit_last
    if order == list(range(rank)):
        return emit_last(norm, x, builder, dims)
    turned = builder.op("Transpose", [x], perm=order)
    turned.shape = ir.Shape([dims[axis] for axis in order])
    last = Blocks(tuple(range(rank - len(norm.blocks.axes), rank)))
    moved = replace(norm, blocks=last, scale=norm.scale.transpose(order), shift=norm.shift.transpose(order))
    result = emit_last(moved, turned, builder, [dims[axis] for axis in order])
    return builder.op("Transpose", [result], perm=[order.index(axis) for axis in range(rank)])


def _needs_float32(norm: Norm, dims: list[Dim], dtype: ir.DataType, instance: bool) -> bool:
    if dtype not in _HALF:
        return False
    if norm.outside or norm.correction:
        return True
    grouped = norm.blocks.split is not None
    return dtype == ir.DataType.BFLOAT16 and (grouped or not norm.centred or is_instance(norm, dims, instance))


def _emit_in_float32(norm: Norm, x: ir.Value, builder: Builder, *, instance: bool) -> ir.Value:
    half, builder.dtype = builder.dtype, ir.DataType.FLOAT
    wide = builder.op("Cast", [x], to=int(ir.DataType.FLOAT))
    wide.shape = x.shape
    result = emit(norm, wide, builder, instance=instance)
    builder.dtype = half
    return builder.op("Cast", [result], to=int(half))


def _full(values: Floats, axis: int, dims: list[Dim]) -> Floats | None:
    """Return an affine constant in the full normalized shape; None if it varies outside of it or that is dynamic."""
    inner = [dim for dim in dims[axis:] if isinstance(dim, int)]
    if len(inner) < len(dims) - axis or any(size != 1 for size in values.shape[:axis]):
        return None
    return np.broadcast_to(values.reshape(values.shape[axis:]), inner)


def _emit_last(norm: Norm, x: ir.Value, builder: Builder, dims: list[Dim]) -> ir.Value:
    """Statistics over the last axes: one operator, and what of the affine does not lie in those axes behind it."""
    axis = norm.blocks.axes[0]
    none, ones = np.zeros((1,) * len(dims)), np.ones((1,) * len(dims))
    scale, shift = _full(norm.scale, axis, dims), _full(norm.shift, axis, dims)
    plain = _full(ones, axis, dims)
    weight = scale if scale is not None else plain if plain is not None else np.ones(1)
    inputs = [x, builder.constant("scale", weight)]
    absorbed = norm.centred and scale is not None and shift is not None
    if absorbed and shift is not None and np.any(shift):
        inputs.append(builder.constant("shift", shift))
    op_type = "LayerNormalization" if norm.centred else "RMSNormalization"
    result = builder.op(op_type, inputs, axis=axis - len(dims), epsilon=norm.epsilon)
    result.shape = ir.Shape(dims)
    return builder.affine(ones if scale is not None else norm.scale, none if absorbed else norm.shift, result)


def _emit_grouped(norm: Norm, x: ir.Value, builder: Builder, dims: list[Dim]) -> ir.Value:
    """Slices of one axis: a Reshape gives each slice an axis of its own."""
    split, rank = norm.blocks.split, len(dims)
    channels = dims[split] if split is not None else None
    if split is None or not isinstance(channels, int):
        raise ValueError(f"a split axis must be static; axis {split} of {dims} is not")
    others = [axis for axis in range(rank) if axis != split and axis not in norm.blocks.axes]
    order = [*others, split, *norm.blocks.axes]
    turned = x if order == list(range(rank)) else builder.op("Transpose", [x], perm=order)
    groups, lead = channels // norm.blocks.width, len(others)
    turned.shape = ir.Shape([dims[axis] for axis in order])
    split_up = builder.op("Reshape", [turned, builder.integers("groups", [0] * lead + [groups, -1])])
    inner = [dims[axis] for axis in norm.blocks.axes]
    static = [size for size in inner if isinstance(size, int)]
    count = norm.blocks.width * math.prod(static) if len(static) == len(inner) else None
    split_up.shape = ir.Shape([*(dims[axis] for axis in others), groups, count])
    if norm.outside or norm.correction:
        unit = (1,) * (lead + 2)
        plain = replace(norm, blocks=Blocks((lead + 1,)), scale=np.ones(unit), shift=np.zeros(unit))
        short = norm.centred and count is not None and builder.dtype == ir.DataType.FLOAT and _divides(plain)
        if norm.correction or not short or count is None:
            normal = _emit_steps(plain, split_up, builder)
        else:
            normal = _emit_outside(plain, split_up, builder, [*(dims[axis] for axis in others), groups, count])
    elif lead == 1 and norm.centred and builder.dtype in INSTANCE_TYPES:
        inputs = [split_up, builder.constant("ones", np.ones(groups)), builder.constant("zeros", np.zeros(groups))]
        normal = builder.op("InstanceNormalization", inputs, epsilon=norm.epsilon)
    else:
        op_type = "LayerNormalization" if norm.centred else "RMSNormalization"
        ones = builder.constant("ones", np.ones(count or 1))
        normal = builder.op(op_type, [split_up, ones], axis=-1, epsilon=norm.epsilon)
    normal.shape = split_up.shape
    ahead = [dims[axis] for axis in order]
    if all(isinstance(dim, int) for dim in ahead[lead:]):
        target = [dim if isinstance(dim, int) and index >= lead else 0 for index, dim in enumerate(ahead)]
        back = builder.op("Reshape", [normal, builder.integers("whole", target)])
    else:
        shape = builder.op("Shape", [turned])
        shape.type = ir.TensorType(ir.DataType.INT64)
        back = builder.op("Reshape", [normal, shape])
    back.shape = ir.Shape(ahead)  # what moves the affine behind it looks at shapes
    scaled = builder.affine(norm.scale.transpose(order), norm.shift.transpose(order), back)
    if turned is x:
        return scaled
    return builder.op("Transpose", [scaled], perm=[order.index(axis) for axis in range(rank)])


def _emit_outside(norm: Norm, x: ir.Value, builder: Builder, dims: list[Dim]) -> ir.Value:
    """Epsilon added to the standard deviation s, last axes: with z = (g / e) (x - m) / s and 1/s from
    LayerNormalization, g (x - m) / (s + e) = z / (1/s + 1/e); three passes over data, and two operators on one number
    per row. Its own epsilon, 1e-36, is there for constant rows (s = 0, z = 0): a deviation of 1e-18, 1e-12 of an e of
    1e-6."""
    axis = norm.blocks.axes[0]
    ones = np.ones((1,) * len(dims))
    scale, plain = _full(norm.scale, axis, dims), _full(ones, axis, dims)
    if plain is None:
        raise ValueError(f"the normalized axes {norm.blocks.axes} of {dims} must be static")
    weight = (plain if scale is None else scale) / norm.epsilon
    inputs = [x, builder.constant("scale", weight)]
    normal = builder.op("LayerNormalization", inputs, outputs=3, axis=axis - len(dims), epsilon=TINY)
    inverse = builder.nodes[-1].outputs[2]
    divisor = builder.statistic("Add", [inverse, builder.constant("per_epsilon", np.array(1.0 / norm.epsilon))])
    # a reciprocal per row and a product: a division of every element is slower
    factor = builder.statistic("Reciprocal", [divisor])
    result = builder.op("Mul", [normal, factor])
    normal.shape = result.shape = ir.Shape(dims)  # maps next to it are followed by shapes
    inverse.shape = divisor.shape = factor.shape = ir.Shape([*dims[:axis], *[1] * (len(dims) - axis)])
    return builder.affine(norm.scale if scale is None else ones, norm.shift, result)


def _divides(norm: Norm) -> bool:
    """Tell whether the short form that divides by epsilon holds: nothing it multiplies overflows or vanishes."""
    divided = np.append(np.abs(norm.scale[norm.scale != 0.0]), 1.0) / norm.epsilon
    return bool(norm.epsilon >= _SMALLEST and divided.min() > 1.0 / _FAR and divided.max() < _FAR)


def _emit_steps(norm: Norm, x: ir.Value, builder: Builder) -> ir.Value:
    """Mean, difference, square, mean, root, division: epsilon added to the standard deviation where LayerNormalization
    does not return 1/s in the data's type, or a variance of n - 1 with a dynamic n."""
    where = builder.integers("axes", list(norm.blocks.axes))
    centred = x
    reduced = ir.Shape([1 if axis in norm.blocks.axes else dim for axis, dim in enumerate(x.shape or ())])

    def shaped(value: ir.Value, shape: ir.Shape | None = reduced) -> ir.Value:
        value.shape = shape  # maps next to it are followed by shapes
        return value

    if norm.centred:
        mean = shaped(builder.op("ReduceMean", [x, where], keepdims=1))
        centred = shaped(builder.op("Sub", [x, mean]), x.shape)
    square = shaped(builder.op("Mul", [centred, centred]), x.shape)
    variance = shaped(builder.op("ReduceMean", [square, where], keepdims=1))
    if norm.correction:
        variance = shaped(builder.statistic("Mul", [variance, _unbiased_ratio(norm, x, builder)]))
    epsilon = builder.constant("epsilon", np.array(norm.epsilon))
    if norm.outside:
        divisor = builder.statistic("Add", [shaped(builder.op("Sqrt", [variance])), epsilon])
    else:
        sum_of = shaped(builder.statistic("Add", [variance, epsilon])) if norm.epsilon else variance
        divisor = builder.op("Sqrt", [sum_of])
    result = shaped(builder.op("Div", [centred, shaped(divisor)]), x.shape)
    return builder.affine(norm.scale, norm.shift, result)


def _unbiased_ratio(norm: Norm, x: ir.Value, builder: Builder) -> ir.Value:
    """Return n / (n - 1) from the sizes of the averaged axes."""
    sizes = builder.scalar("Shape", [x], ir.DataType.INT64)
    averaged = builder.scalar(
        "Gather", [sizes, builder.integers("averaged", list(norm.blocks.axes))], ir.DataType.INT64, axis=0
    )
    whole = builder.scalar("ReduceProd", [averaged], ir.DataType.INT64, keepdims=0)
    count = builder.scalar("Cast", [whole], builder.dtype, to=int(builder.dtype))
    rest = builder.scalar("Sub", [count, builder.constant("one", np.array(1.0))], builder.dtype)
    return builder.scalar("Div", [count, rest], builder.dtype)


def emittable(norm: Norm, x: ir.Value) -> str:
    """Return why a normalization cannot be written as operators here; empty if it can."""
    kind = x.dtype or ir.DataType.FLOAT
    with np.errstate(over="ignore"):
        stored = [array.astype(kind.numpy()).astype(np.float64) for array in (norm.scale, norm.shift)]
    if not all(np.isfinite(array).all() for array in stored):
        return f"its scale or shift, taken together, would overflow {kind.name.lower()}"
    if loses_digits(kind, norm.scale):
        return f"its scale, taken together, would lose digits: {kind.name.lower()} has fewer for numbers so small"
    return ""


def is_instance(norm: Norm, dims: list[Dim], preferred: bool) -> bool:
    """Tell whether InstanceNormalization is to say it: all axes after the channel, one scale and shift per channel.

    Three axes and no affine are a LayerNormalization just as well; that one is more exact and InstanceNormalization
    faster by a fifth, so it is what the author wrote, or what needs no full scale where the last axis is dynamic.
    """
    rank = len(dims)
    if not norm.centred or norm.outside or norm.correction or norm.blocks.split is not None:
        return False
    if rank < 3 or norm.blocks.axes != tuple(range(2, rank)) or not isinstance(dims[1], int):
        return False
    elsewhere = [axis for axis in range(rank) if axis != 1]
    if any(array.shape[axis] != 1 for array in (norm.scale, norm.shift) for axis in elsewhere):
        return False
    varies = norm.scale.shape[1] != 1 or norm.shift.shape[1] != 1
    return varies or rank > 3 or preferred or not isinstance(dims[-1], int)
