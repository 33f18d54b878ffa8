"""Constants that become other ones: derived, what a copy costs, asked whether a new one fits its type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import constant_tensor, tensor64
from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.replacement import Region

FORMATS = {
    ir.DataType.FLOAT16: (2.0**-11, 2.0**-14, 65504.0),
    ir.DataType.BFLOAT16: (2.0**-8, 2.0**-126, 255 / 128 * 2.0**127),
    ir.DataType.FLOAT: (2.0**-24, 2.0**-126, float(np.finfo(np.float32).max)),
    ir.DataType.DOUBLE: (2.0**-53, 2.0**-1022, float(np.finfo(np.float64).max)),
}
"""Unit roundoff, smallest normal number and largest number of each type."""

LOSS = 2.0
"""Units in the last place of a row's root mean square that storing its weights may cost; plain rounding costs 0.3."""


def holds_less(dtype: ir.DataType | None, other: ir.DataType | None) -> bool:
    """Tell whether a float type has fewer digits, or less large numbers, than another (float32 where not known)."""
    plain = FORMATS[ir.DataType.FLOAT]
    own, others = (plain if kind is None else FORMATS.get(kind, plain) for kind in (dtype, other))
    return own[0] > others[0] or own[2] < others[2]


def copy_cost(value: ir.Value | None, reader: ir.Node) -> float:
    """Return the bytes of the copy that is needed because others than ``reader`` keep the old constant."""
    if value is None or all(usage.node is reader for usage in value.uses()):
        return 0.0
    return bytes_moved.copy_bytes(value)


def storable(dtype: ir.DataType | None, *arrays: Floats) -> bool:
    """Tell whether arrays are finite when rounded to a float type (float32 where it is not known)."""
    largest = FORMATS[dtype or ir.DataType.FLOAT][2]
    ends = ((np.min(array, initial=0.0), np.max(array, initial=0.0)) for array in arrays)
    return all(bool(-largest <= least) and bool(most <= largest) for least, most in ends)


def loses_digits(dtype: ir.DataType, array: Floats, axes: tuple[int, ...] | None = None) -> npt.NDArray[np.bool_]:
    """Tell of which rows a type holds fewer digits than of others: their numbers are below its normal ones.

    Args:
        dtype: the type.
        array: unrounded numbers.
        axes: those of a row; all by default.

    Returns:
        One truth value for each row.
    """
    norm = np.sqrt(np.square(array).mean(axis=axes))
    with np.errstate(over="ignore"):
        lost = np.sqrt(np.square(array.astype(dtype.numpy()).astype(np.float64) - array).mean(axis=axes))
    return np.asarray(lost > LOSS * FORMATS[dtype][0] * norm)


def derive(
    region: Region, value: ir.Value, transform: Callable[[Floats], Floats], shape: Sequence[int] | None = None
) -> ir.Value:
    """Register ``transform(value)``, computed in float64 from the exact constant ``value``.

    Args:
        region: where.
        value: a float constant.
        transform: from and to float64 arrays.
        shape: the result's; the same as before by default.
    """
    tensor = constant_tensor(value)
    assert tensor is not None
    return region.constant(
        lambda: transform(tensor64(tensor)),
        tuple(tensor.shape.numpy()) if shape is None else shape,
        tensor.dtype,
        name=str(value.name),
        succeeds=value,
    )


def along(array: Floats, axis: int, size: int) -> Floats:
    """Return s or t, which varies along ``axis`` only, as a vector of ``size``."""
    return (
        np.array(np.broadcast_to(array.reshape(-1), (size,))) if array.shape[axis] in (1, size) else array.reshape(-1)
    )
