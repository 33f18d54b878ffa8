"""How many operators an affine map takes when it is written.

Not as BatchNormalization where the input comes from a MatMul through Reshape or Transpose: onnxruntime's fusion of
MatMul with BatchNormalization walks through those without following the channel, so that a result of 6 x 6 elements
came out wrong. Nor beyond five dimensions, which onnxruntime's CUDA provider does not read.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import affine_map, written_of

_BATCH_NORM_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_MOST_DIMENSIONS = 5


def passes(node: ir.Node, mapping: AffineMap) -> int:
    """Return how many operators a map takes: none; a Mul, an Add or a BatchNormalization; or a Mul and an Add."""
    if mapping.no_scale and mapping.no_shift:
        return 0
    if mapping.no_scale or mapping.no_shift or fits_batch_norm(node, mapping):
        return 1
    return 2


def passes_now(node: ir.Node) -> int:
    """Return how many operators an Affine takes as it stands: as its author wrote it, where that is fewer."""
    own, written = passes(node, affine_map(node)), len(written_of(node))
    return min(own, written) if written else own


def fits_batch_norm(node: ir.Node, mapping: AffineMap) -> bool:
    """Tell whether an Affine can be written as one BatchNormalization: y = s x + t in one pass."""
    x = node.inputs[0]
    assert x is not None
    if mapping.no_scale or mapping.no_shift or not mapping.axes <= {1}:
        return False
    if not 2 <= mapping.rank <= _MOST_DIMENSIONS:
        return False
    if x.dtype not in _BATCH_NORM_TYPES or x.shape is None or not isinstance(x.shape[1], int):
        return False
    return not _behind_matmul(x)


def _behind_matmul(value: ir.Value) -> bool:
    """Tell whether a value is a MatMul's result, seen through operators that only change the shape."""
    for _ in range(64):
        producer = value.producer()
        if producer is None:
            return False
        if is_standard(producer, "MatMul"):
            return True
        if not has(producer, Trait.PERMUTES) or producer.inputs[0] is None:
            return False
        value = producer.inputs[0]
    return True
