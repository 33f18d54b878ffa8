r"""How far an interpolating Resize may be off: where it reads is rounded, and a cubic's weights cancel.

A result is read at p = (j + 1/2) n / m - 1/2, of which kernels round another part each: torch takes n / m, onnxruntime
divides by m / n. For 28 -> 16 the first is exact in float32 and the second is not. An error of u p in the place moves
the result by as much of the slope there, which is far more than u of the result: 310 u of white noise 224 pixels wide.
It is no fault of the file: torch errs alike wherever n / m is no short binary number.

A cubic's four weights are polynomials of s + 1 <= 2 with coefficients up to 6: on an image of ones, where they should
add up to 1, kernels were seen to err by up to 10 u (RMS over an image; onnxruntime 9.7, torch 5.9).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.traits import is_standard

_CUBIC = 10.0
"""Roundings of a cubic's weights, see above."""

_ROUNDINGS = 2
"""Of a place: the quotient of the sizes is rounded, and what it multiplies or divides."""

_STEEPEST = 1.5
"""A cubic's slope over the largest difference of the neighbours that it reads."""


def interpolates(node: ir.Node) -> bool:
    """Tell whether an operator reads between places."""
    return is_standard(node, "Resize", "Upsample") and node.attributes.get_string("mode", "nearest") != "nearest"


def interpolation_terms(node: ir.Node, x: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return, per element of a result, how large an error of one u of the places, or of the weights, is.

    Args:
        node: the operator. x: what it reads, None where not known. shape: of its result.
    """
    if x is None or not x.is_floating_point() or x.dim() != len(shape) or not x.numel() or 0 in shape:
        return None
    cubic = node.attributes.get_string("mode", "nearest") == "cubic"
    reach = 2 if cubic else 1
    scaled = [axis for axis, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n != m and n > 1]
    total = torch.zeros(list(shape), dtype=x.dtype)
    for axis in scaled:
        rise = torch.cat([x.narrow(axis, 0, 1), x], axis).diff(dim=axis).abs()
        places = _nearest(x.shape[axis], shape[axis]).to(x.dtype) + 1
        places = places.reshape([-1 if other == axis else 1 for other in range(x.dim())])
        total += _ROUNDINGS * places * _picked(rise, scaled, shape, reach) * (_STEEPEST if cubic else 1.0)
    if cubic and scaled:
        total += _CUBIC * _picked(x.abs(), scaled, shape, reach)
    return total


def _nearest(n: int, m: int) -> Tensor:
    return ((torch.arange(m, dtype=torch.float64) + 0.5) * (n / m) - 0.5).round().long().clamp(0, n - 1)


def _picked(size: Tensor, axes: Sequence[int], shape: Sequence[int], reach: int) -> Tensor:
    """Return the largest of what lies within ``reach`` of each place of a result."""
    for axis in axes:
        n = size.shape[axis]
        for _ in range(reach):
            ends = (size.narrow(axis, 0, 1), size.narrow(axis, n - 1, 1))
            size = torch.cat([ends[0], size, ends[1]], axis).unfold(axis, 3, 1).amax(-1)
        size = size.index_select(axis, _nearest(n, shape[axis]))
    return size
