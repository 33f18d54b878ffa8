"""How an affine map crosses each operator: one row per operator, behind it and in front of it.

Backward: a map stands behind the operator; who in front of it takes the map? Forward: the map stands in front of the
operator; who behind it? Each rule states its algebra, its conditions and its refusals in its own module. Adding an
operator is adding a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import AFFINE_DOMAIN
from normdeploy.rewrite.affine import (
    absorb_affine,
    absorb_conv,
    absorb_convtranspose,
    absorb_gemm,
    absorb_matmul,
    absorb_norm,
    absorb_quantized,
    absorb_recurrent,
    cross_activation,
    cross_add,
    cross_blocks,
    cross_concat,
    cross_identity,
    cross_mul,
    cross_neg,
    cross_pad,
    cross_pool,
    cross_select,
    cross_shape,
)
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal

BackwardRule = Callable[[ir.Node, int, AffineMap, Backward], BackwardPlan | Refusal]
"""(operator, which of its outputs, the map behind that output, the search) -> plan or refusal."""

ForwardRule = Callable[[ir.Node, int, AffineMap, Forward], ForwardPlan | Refusal]
"""(operator, which of its inputs, the map in front of that input, the search) -> plan or refusal."""


JoinRule = Callable[[ir.Node, Mapping[int, AffineMap]], AffineMap | Refusal]
"""(operator, the maps in front of two or more of its inputs) -> the map behind it, or refusal."""


@dataclass(frozen=True)
class Row:
    """How a map crosses one operator; None where it never does.

    Args:
        backward: from behind it.
        forward: from in front of one input.
        join: from in front of several inputs at once; only for operators that combine computed values.
    """

    backward: BackwardRule | None
    forward: ForwardRule | None
    join: JoinRule | None = None


@dataclass(frozen=True)
class Table:
    """Rows by (domain, operator).

    Args:
        rows: the rows.
        linear: the operators whose weights absorb a map, for the wording of reasons.
    """

    rows: dict[tuple[str, str], Row]
    linear: frozenset[str]

    def row(self, node: ir.Node) -> Row | None:
        """Return an operator's row; None if no map crosses it in any direction."""
        return self.rows.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))

    def is_linear(self, node: ir.Node) -> bool:
        """Tell whether an operator has weights that absorb."""
        return node.domain in ("", "ai.onnx") and node.op_type in self.linear


_RECURRENT = Row(None, absorb_recurrent.forward)
_ADD = Row(cross_add.backward, cross_add.forward, cross_add.join)
_MUL = Row(cross_mul.backward, cross_mul.forward, cross_mul.join)
_NORM = Row(absorb_norm.backward, absorb_norm.forward)
_SAME = Row(cross_identity.backward, cross_identity.forward)
_RESHAPE = Row(cross_shape.reshape_backward, cross_shape.reshape_forward)
_SELECT = Row(cross_select.backward, cross_select.forward)
_POOL = Row(cross_pool.pool_backward, cross_pool.pool_forward)
_REDUCE = Row(cross_pool.reduce_backward, cross_pool.reduce_forward)
_HOMOGENEOUS = Row(cross_activation.backward, cross_activation.forward)

TABLE = Table(
    rows={
        # linear operators absorb
        ("", "Conv"): Row(absorb_conv.backward, absorb_conv.forward),
        ("", "ConvTranspose"): Row(absorb_convtranspose.backward, absorb_convtranspose.forward),
        ("", "Gemm"): Row(absorb_gemm.backward, absorb_gemm.forward),
        ("", "MatMul"): Row(absorb_matmul.backward, absorb_matmul.forward),
        ("", "LSTM"): _RECURRENT,
        ("", "GRU"): _RECURRENT,
        ("", "RNN"): _RECURRENT,
        ("", "DequantizeLinear"): Row(absorb_quantized.backward, None),
        (AFFINE_DOMAIN, "Affine"): Row(absorb_affine.backward, absorb_affine.forward),
        # norms that compute statistics absorb behind them, and cancel in front of them
        ("", "LayerNormalization"): _NORM,
        ("", "RMSNormalization"): _NORM,
        ("", "InstanceNormalization"): _NORM,
        ("", "GroupNormalization"): _NORM,
        # sums and products of computed values
        ("", "Add"): _ADD,
        ("", "Sub"): _ADD,
        ("", "Sum"): _ADD,
        ("", "Mul"): _MUL,
        ("", "Div"): _MUL,
        # the channel axis is followed
        ("", "Transpose"): Row(cross_shape.transpose_backward, cross_shape.transpose_forward),
        ("", "Reshape"): _RESHAPE,
        ("", "Flatten"): _RESHAPE,
        ("", "Squeeze"): _RESHAPE,
        ("", "Unsqueeze"): _RESHAPE,
        ("", "Expand"): Row(cross_shape.expand_backward, cross_shape.expand_forward),
        ("", "Tile"): Row(cross_shape.tile_backward, cross_shape.tile_forward),
        ("", "DepthToSpace"): Row(cross_blocks.backward, cross_blocks.forward),
        ("", "SpaceToDepth"): Row(cross_blocks.backward, cross_blocks.forward),
        # s and t are cut and joined
        ("", "Concat"): Row(cross_concat.backward, cross_concat.forward, cross_concat.join),
        ("", "Split"): _SELECT,
        ("", "Slice"): _SELECT,
        ("", "Gather"): _SELECT,
        # averages, maxima, interpolation
        ("", "AveragePool"): _POOL,
        ("", "GlobalAveragePool"): _POOL,
        ("", "MaxPool"): _POOL,
        ("", "GlobalMaxPool"): _POOL,
        ("", "ReduceMean"): _REDUCE,
        ("", "ReduceSum"): _REDUCE,
        ("", "ReduceMax"): _REDUCE,
        ("", "ReduceMin"): _REDUCE,
        ("", "Resize"): Row(cross_pool.resize_backward, cross_pool.resize_forward),
        ("", "Pad"): Row(cross_pad.backward, cross_pad.forward),
        ("", "Neg"): Row(cross_neg.backward, cross_neg.forward),
        # activations
        ("", "Relu"): _HOMOGENEOUS,
        ("", "LeakyRelu"): _HOMOGENEOUS,
        ("", "PRelu"): _HOMOGENEOUS,
        ("", "Clip"): Row(cross_activation.clip_backward, cross_activation.clip_forward),
        # nothing changes
        ("", "Identity"): _SAME,
        ("", "Dropout"): _SAME,
        ("", "Cast"): _SAME,
        ("", "Shape"): Row(None, cross_identity.shape_forward),
        ("", "Size"): Row(None, cross_identity.shape_forward),
    },
    linear=frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"}),
)
