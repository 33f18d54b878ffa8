"""What a graph costs, as far as moving affine maps changes it. Unit: bytes moved through memory.

- An elementwise pass reads and writes its tensor: 2 * elements * itemsize. A map with a scale and a shift counts as one
  pass (most are written as one BatchNormalization), as does a map with only one of them; a map that stays and comes to
  take more operators than it took counts as one for each of these.
- A bias Add that a MatMul newly needs counts half a pass: runtimes compute it in the product's epilogue.
- A weight that must be copied because another operator keeps the old one costs its bytes once: it is read again.

Dynamic dimensions count as :data:`ASSUMED_DIM`; of values that only another view tells apart, (N, 196, 256) and
(N 196, 256) with an unknown product, the one that says most counts for both. Only the order of two plans matters, not
the number.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from normdeploy.graph import AFFINE_DOMAIN
from normdeploy.graph.dynamic_dims import names_of, size_at
from normdeploy.graph.traits import Trait, has

ASSUMED_DIM = 8
BIAS_PASS = 0.5

_LONGEST = 8
"""Views that are looked through."""


def elements(value: ir.Value) -> int:
    """Return the number of elements of a value, dynamic dimensions assumed; 0 if its rank is unknown."""
    most = 0
    for _ in range(_LONGEST):
        most = max(most, _shown(value))
        node = value.producer()
        if (
            value.shape is None
            or value.shape.is_static()
            or node is None
            or not (has(node, Trait.PERMUTES) or node.domain == AFFINE_DOMAIN)
            or node.inputs[0] is None
        ):
            break
        value = node.inputs[0]
    return most


def _shown(value: ir.Value) -> int:
    """Return the number of elements that a value's own shape shows."""
    if value.shape is None:
        return 0
    return math.prod(dim if isinstance(dim, int) else _assumed(dim) for dim in value.shape)


def _assumed(dim: ir.SymbolicDim) -> int:
    """Return the size assumed for a dynamic dimension: an expression such as ``9*batch`` keeps its factor."""
    found = size_at(dim, dict.fromkeys(names_of(dim), ASSUMED_DIM))
    return found if found is not None and found > 0 else ASSUMED_DIM


def itemsize(value: ir.Value) -> float:
    """Return bytes per element; 4 where the type is unknown."""
    return 4.0 if value.dtype is None else value.dtype.bitwidth / 8


def pass_bytes(value: ir.Value) -> float:
    """Return the cost of one elementwise pass over a value."""
    return 2 * elements(value) * itemsize(value)


def bias_bytes(value: ir.Value) -> float:
    """Return the cost of a bias Add on a product that had none."""
    return BIAS_PASS * pass_bytes(value)


def copy_bytes(value: ir.Value) -> float:
    """Return the cost of a second copy of a constant."""
    return elements(value) * itemsize(value)
