"""How each operator ties the gauges of what it reads and writes, and what it becomes under them: one row per operator.

A rule states ties and restrictions and searches nothing. Adding an operator is adding a row: most are one of the
functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import AFFINE_DOMAIN
from normdeploy.graph.traits import kind_of
from normdeploy.rewrite.gauge.gauge import Ties
from normdeploy.rewrite.gauge.operator_edit import Edit
from normdeploy.rewrite.gauge.rules import (
    averages,
    einsum,
    elementwise,
    linear,
    maps,
    moves,
    norms,
    pad,
    products,
    reshape,
    scatter,
    softmax,
    weighed,
)


@dataclass(frozen=True)
class Rule:
    """One operator.

    Args:
        tie: states its ties and gives its results gauges; returns False where this operator cannot be followed.
        write: changes its constants to fit the gauges that were found; by default its constant operands alone.
        absorbs: it has weights: gauges of what it reads and writes are free of each other.
    """

    tie: Callable[[ir.Node, Ties], bool]
    write: Callable[[Edit], None] = elementwise.write_constants
    absorbs: bool = False


_CONVOLUTION = Rule(linear.tie, linear.write, absorbs=True)
_PRODUCT = Rule(products.tie, products.write, absorbs=True)
_NORM = Rule(norms.tie, norms.write, absorbs=True)
_MOVE = Rule(moves.tie)
_RESHAPE = Rule(reshape.tie)
_SCATTER = Rule(scatter.tie)
_POOL = Rule(averages.pool)
_REDUCE = Rule(averages.reduction)
_LARGEST = Rule(averages.largest)
_SUM = Rule(elementwise.add)
_CHOICE = Rule(elementwise.choose)
_HOMOGENEOUS = Rule(elementwise.homogeneous)

RULES: dict[tuple[str, str], Rule] = {
    # linear operators and norms absorb
    ("", "Conv"): _CONVOLUTION,
    ("", "ConvTranspose"): _CONVOLUTION,
    ("", "LSTM"): _CONVOLUTION,
    ("", "GRU"): _CONVOLUTION,
    ("", "RNN"): _CONVOLUTION,
    ("", "MatMul"): _PRODUCT,
    ("", "Gemm"): _PRODUCT,
    ("", "LayerNormalization"): _NORM,
    ("", "RMSNormalization"): _NORM,
    ("", "InstanceNormalization"): _NORM,
    ("", "GroupNormalization"): _NORM,
    (AFFINE_DOMAIN, "Affine"): Rule(maps.tie, maps.write, absorbs=True),
    ("", "Einsum"): Rule(einsum.tie),
    # only move elements
    ("", "Identity"): _MOVE,
    ("", "Transpose"): _MOVE,
    ("", "Slice"): _MOVE,
    ("", "Split"): _MOVE,
    ("", "Gather"): _MOVE,
    ("", "GatherElements"): _MOVE,
    ("", "GatherND"): _MOVE,
    ("", "Concat"): _MOVE,
    ("", "Tile"): _MOVE,
    ("", "DepthToSpace"): _MOVE,
    ("", "SpaceToDepth"): _MOVE,
    ("", "ReverseSequence"): _MOVE,
    ("", "Compress"): _MOVE,
    ("", "Trilu"): Rule(elementwise.masked),
    ("", "Reshape"): _RESHAPE,
    ("", "Flatten"): _RESHAPE,
    ("", "Squeeze"): _RESHAPE,
    ("", "Unsqueeze"): _RESHAPE,
    ("", "Expand"): Rule(reshape.expand),
    ("", "Pad"): Rule(pad.tie, pad.write),
    # write into places
    ("", "ScatterElements"): _SCATTER,
    ("", "ScatterND"): _SCATTER,
    ("", "ConstantOfShape"): Rule(scatter.filled),
    # average, interpolate, take a maximum
    ("", "AveragePool"): _POOL,
    ("", "GlobalAveragePool"): _POOL,
    ("", "MaxPool"): _POOL,
    ("", "GlobalMaxPool"): _POOL,
    ("", "LpPool"): _POOL,
    ("", "GlobalLpPool"): _POOL,
    ("", "ReduceMean"): _REDUCE,
    ("", "ReduceSum"): _REDUCE,
    ("", "ReduceMax"): _REDUCE,
    ("", "ReduceMin"): _REDUCE,
    ("", "ReduceL1"): _REDUCE,
    ("", "ReduceL2"): _REDUCE,
    ("", "CumSum"): Rule(averages.running_sum),
    ("", "TopK"): _LARGEST,
    ("", "ArgMax"): _LARGEST,
    ("", "ArgMin"): _LARGEST,
    ("", "Hardmax"): _LARGEST,
    ("", "Resize"): Rule(averages.resize),
    ("", "GridSample"): Rule(averages.sample),
    # look at one position at a time
    ("", "Add"): _SUM,
    ("", "Sub"): _SUM,
    ("", "Sum"): _SUM,
    ("", "Mean"): _SUM,
    ("", "Mul"): Rule(weighed.tie),
    ("", "Div"): Rule(elementwise.multiply),
    ("", "Relu"): _HOMOGENEOUS,
    ("", "LeakyRelu"): _HOMOGENEOUS,
    ("", "PRelu"): _HOMOGENEOUS,
    ("", "Abs"): _HOMOGENEOUS,
    ("", "Max"): _CHOICE,
    ("", "Min"): _CHOICE,
    ("", "Where"): Rule(elementwise.where),
    ("", "Clip"): Rule(elementwise.clip, elementwise.write_clip),
    ("", "Neg"): Rule(elementwise.negate),
    ("", "Cast"): Rule(elementwise.cast),
    ("", "Dropout"): Rule(elementwise.dropout),
    ("", "Softmax"): Rule(softmax.tie),
    ("", "LogSoftmax"): Rule(softmax.tie),
}


def rule_of(node: ir.Node) -> Rule | None:
    """Return an operator's rule; None if no gauge passes it."""
    return RULES.get(kind_of(node))
