"""How each operator ties the gauges of what it reads and writes, and what it becomes under them: one row per operator.

A rule states ties and restrictions and searches nothing. Adding an operator is adding a row: most are one of the
functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import AFFINE_DOMAIN
from normdeploy.graph.exponents import POWERS
from normdeploy.graph.traits import kind_of
from normdeploy.rewrite.gauge.gauge import Gauge
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
    powers,
    products,
    reshape,
    scatter,
    sides_of_zero,
    softmax,
    weighed,
)
from normdeploy.rewrite.gauge.ties import Ties


@dataclass(frozen=True)
class Rule:
    """One operator.

    Args:
        tie: states its ties and returns the gauge of its (first) result; a rule of several results, or of another one,
            gives them theirs itself. Raises Unfollowed where this operator cannot be followed.
        write: changes its constants to fit the gauges that were found; by default its constant operands alone.
        absorbs: it has weights: gauges of what it reads and writes are free of each other.
    """

    tie: Callable[[ir.Node, Ties], Gauge | None]
    write: Callable[[Edit], None] = elementwise.write_constants
    absorbs: bool = False


RULES: dict[tuple[str, str], Rule] = {
    ("", name): rule
    for names, rule in (
        # linear operators and norms absorb
        ("Conv ConvTranspose DeformConv LSTM GRU RNN", Rule(linear.tie, linear.write, absorbs=True)),
        ("MatMul Gemm", Rule(products.tie, products.write, absorbs=True)),
        (
            "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization",
            Rule(norms.tie, norms.write, absorbs=True),
        ),
        ("Einsum", Rule(einsum.tie)),
        # only move elements
        (" ".join(moves.ACTS), Rule(moves.tie)),
        ("Reshape Flatten Squeeze Unsqueeze", Rule(reshape.tie)),
        ("Expand", Rule(reshape.expand)),
        ("Pad", Rule(pad.tie, pad.write)),
        # write into places
        ("ScatterElements ScatterND", Rule(scatter.tie)),
        ("ConstantOfShape", Rule(scatter.filled)),
        # average, interpolate, take a maximum
        ("AveragePool GlobalAveragePool MaxPool GlobalMaxPool LpPool GlobalLpPool", Rule(averages.pool)),
        ("ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceLogSumExp", Rule(averages.reduction)),
        ("CumSum", Rule(averages.running_sum)),
        ("Col2Im", Rule(averages.picture)),
        ("TopK ArgMax ArgMin Hardmax", Rule(averages.largest)),
        ("Resize", Rule(averages.resize)),
        ("GridSample", Rule(averages.sample)),
        # look at one position at a time
        ("Add Sub Sum Mean", Rule(elementwise.add)),
        ("Mul", Rule(weighed.tie)),
        ("Div", Rule(elementwise.multiply)),
        ("Relu LeakyRelu PRelu Abs", Rule(elementwise.homogeneous)),
        (" ".join(POWERS), Rule(powers.tie)),
        ("Sign Greater GreaterOrEqual Less LessOrEqual", Rule(sides_of_zero.tie)),
        ("Max Min", Rule(elementwise.choose)),
        ("Where", Rule(elementwise.where)),
        ("Clip", Rule(elementwise.clip, elementwise.write_clip)),
        ("Neg", Rule(elementwise.negate)),
        ("Trilu", Rule(elementwise.masked)),
        ("Cast", Rule(elementwise.cast)),
        ("Dropout", Rule(elementwise.dropout)),
        ("Softmax LogSoftmax", Rule(softmax.tie)),
    )
    for name in names.split()
} | {(AFFINE_DOMAIN, "Affine"): Rule(maps.tie, maps.write, absorbs=True)}


def rule_of(node: ir.Node) -> Rule | None:
    """Return an operator's rule; None if no gauge passes it."""
    return RULES.get(kind_of(node))
