"""Operators that raise what they read to a power, and which power that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.graph.operator_inputs import required

POWERS = ("Pow", "Sqrt", "Reciprocal")

_FIXED = {"Sqrt": 0.5, "Reciprocal": -1.0}


def exponents_of(node: ir.Node, constant: Callable[[ir.Value], Array | None]) -> Floats | None:
    """Return the different exponents p of x^p, in order; None where these are computed at run time.

    Args:
        node: one of :data:`POWERS`. constant: of a value, its numbers where these are fixed.
    """
    if node.op_type in _FIXED:
        return np.array([_FIXED[node.op_type]])
    found = constant(required(node, 1))
    return None if found is None else np.unique(np.asarray(found, np.float64))
