"""What a value is a copy of, what is fed to it, and which gauges it may have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Shape
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import kind


def copied(value: ir.Value) -> ir.Value:
    """Return what a value is a copy of, by Identities."""
    node = value.producer()
    while node is not None and kind(node) == "Identity" and node.inputs[0] is not None:
        value, node = node.inputs[0], node.inputs[0].producer()
    return value


def fed_alike(w: ir.Value, v: ir.Value) -> bool:
    """Tell whether two inputs are given the same, where they are fed and where they are not."""
    want, have = w.const_value, v.const_value
    if want is None or have is None:
        return want is have
    return want.dtype == have.dtype and np.array_equal(want.numpy(), have.numpy())


def fits(scale: np.ndarray, shift: np.ndarray, shapes: tuple[Shape, ...]) -> bool:
    """Tell whether a gauge is one of a value of these shapes."""
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return False
    return all(
        n in (1, size)
        for array in (scale, shift)
        for shape in shapes
        for n, size in zip(array.shape, shape, strict=True)
    )


def ranks_in(side: Side) -> Callable[[ir.Value], int | None]:
    """Return what tells how many axes a value of a graph has."""
    return lambda value: next((len(shape) for shape in side.shapes(value)), None)
