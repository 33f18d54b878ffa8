"""Which single operators are channel-wise affine maps, and what they do.

- BatchNormalization in inference form: s = scale / sqrt(var + epsilon), t = B - s mean, along axis 1. Computed in
  float64 from the stored numbers: epsilon 1e-8 beside a float16 variance of 0 is 1e-8, not 0. Outputs beyond the first
  mean batch statistics, whatever the mode says (before opset 14 they were how the mode was said).
- Mul, Add, Sub, Div by a constant, a Sum of two, Neg: where the constant broadcasts into x without enlarging it and
  varies along one axis at most.
- The same with constants that vary along several axes, where a difference is then scaled: (x - m) / d is a batch
  normalization over axis 0 alone of an input of higher rank, and what follows it in its module belongs to it. Products
  also where a Reshape made these axes of one, channels in groups or features in heads, and beside a product with a
  stack of matrices, whose numbers vary along the same axes: linear layers of experts.

No affine map: integers; any other constant that varies along several axes (a position embedding, a rotary table); one
that enlarges x.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, constant64, is_constant
from normdeploy.graph.edit import is_read
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import is_standard
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.axes import dims_of, groups
from normdeploy.rewrite.affine.far_from_zero import DEVIATION, OFFSET, offset_of
from normdeploy.rewrite.affine.operator_names import describe

BATCH_NORM = "BatchNormalization"
AFFINE_KIND = "affine map"

_TRAINING = (
    "it computes the statistics of each batch (training mode), so it is no fixed map: "
    "switch the model to evaluation mode before exporting it"
)


@dataclass(frozen=True)
class Match:
    """An operator that is an affine map of ``x``."""

    x: ir.Value
    mapping: AffineMap
    kind: str
    detail: dict[str, Any]


@dataclass(frozen=True)
class NoMatch:
    """A normalization or affine map that cannot be treated as one, and why."""

    kind: str
    reason: str


def match(node: ir.Node) -> Match | NoMatch | None:
    """Return what a node is: an affine map, one that must stay (with the reason), or None."""
    if not is_standard(node):
        return None
    if node.op_type == BATCH_NORM:
        return _batch_norm(node)
    if node.op_type in ("Mul", "Add", "Sub", "Div", "Sum") and len(node.inputs) == 2:
        return _arithmetic(node)
    if node.op_type == "Neg":
        x = node.inputs[0]
        if x is None or x.dtype not in FLOATS or x.shape is None or x.shape.rank() == 0:
            return None
        return Match(x, AffineMap.of(-1.0, 0.0, x.shape.rank()), AFFINE_KIND, {"op": "Neg"})
    return None


def _at_run_time(node: ir.Node, position: int, name: str) -> str:
    """Say why an operand of a BatchNormalization is no constant."""
    value = node.inputs[position]
    if value is None or value.producer() is None:
        return f"its {name} is not a constant: a caller of the graph can change it"
    if name in ("mean", "variance"):
        return (
            f"its {name} is computed at run time, not kept from training: if it is the batch's own, a sample's result "
            "depends on its batch; keep running statistics (track_running_stats)"
        )
    return f"its {name} is computed at run time"


def _batch_norm(node: ir.Node) -> Match | NoMatch:
    if node.attributes.get_int("training_mode", 0) or _extra_outputs(node):
        return NoMatch(BATCH_NORM, _TRAINING)
    names = ("scale", "bias", "mean", "variance")
    arrays: dict[str, Floats] = {}
    for position, name in enumerate(names, start=1):
        array = _parameter(optional(node, position))
        if array is None:
            return NoMatch(BATCH_NORM, _at_run_time(node, position, name))
        arrays[name] = array
    if arrays["scale"].size == 0:
        return NoMatch(BATCH_NORM, "it has no channels")
    x = node.inputs[0]
    if x is None or x.shape is None or x.shape.rank() < 2:
        return _unranked(BATCH_NORM, x)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    radicand = arrays["variance"] + epsilon
    if not (radicand > 0).all():
        bad = np.flatnonzero(~(radicand > 0).reshape(-1))
        return NoMatch(
            BATCH_NORM,
            f"its running variance plus epsilon is not positive in channel {bad[0]} ({bad.size} in all): "
            "train it again or restore its statistics",
        )
    scale = arrays["scale"] / np.sqrt(radicand)
    shift = arrays["bias"] - scale * arrays["mean"]
    rank = x.shape.rank()
    spread = (-1, *(1,) * (rank - 2))
    mapping = AffineMap.of(scale.reshape(spread), shift.reshape(spread), rank)
    if not mapping.finite:
        return NoMatch(BATCH_NORM, "its parameters hold NaN or infinity: train it again or restore them")
    if mapping.too_small is not None:
        return NoMatch(BATCH_NORM, _too_small(mapping.too_small))
    offset = offset_of(scale * arrays["mean"], np.hypot(arrays["scale"], arrays["bias"]))
    detail = {
        "op": BATCH_NORM, "axis": 1, "epsilon": epsilon, "channels": int(arrays["scale"].size), OFFSET: offset,
        DEVIATION: float(np.median(np.sqrt(radicand))),
    }  # fmt: skip
    return Match(x, mapping, BATCH_NORM, detail)


def _too_small(scale: float) -> str:
    return f"it scales by {scale:.3g}, by which not even float64 can divide: set that scale to 0"


def _unranked(kind: str, x: ir.Value | None) -> NoMatch:
    """Return why an operator stays whose input has no known rank: by whom, where all that one reads has a shape."""
    maker = None if x is None else x.producer()
    while maker is not None:
        before = [value for value in maker.inputs if value is not None and value.shape is None]
        if not before:
            return NoMatch(
                kind,
                f"the rank of its input is not known: onnx infers no shape behind {describe(maker)}; declare that of "
                "its result in the file (value_info)",
            )
        maker = before[0].producer()
    return NoMatch(kind, "the rank of its input is not known: give the model input shapes")


def _parameter(value: ir.Value | None) -> Floats | None:
    """Return a constant, also one that is stored in integers: quantizers write the parameters of norms so."""
    found = constant64(value)
    if found is not None or value is None:
        return found
    weight = fixed_weight(value)
    return None if weight is None else weight.array()


def _extra_outputs(node: ir.Node) -> bool:
    return is_read(*(output for output in node.outputs[1:] if output.name))


def _centres(node: ir.Node, subtracts: bool) -> bool:
    """Tell whether a node subtracts a constant from what only a product or quotient with a constant reads."""
    readers = [usage.node for usage in node.outputs[0].uses()]
    return (
        node.op_type == "Sub"
        and subtracts
        and len(readers) == 1
        and readers[0].op_type in ("Mul", "Div")
        and is_standard(readers[0])
        and any(is_constant(value) for value in readers[0].inputs)
    )


def _continues(x: ir.Value) -> bool:
    """Tell whether a value is the result of a recognised map that varies along several axes."""
    producer = x.producer()
    return producer is not None and is_affine(producer) and len(affine_map(producer).axes) > 1


def _were_one_axis(x: ir.Value, axes: Collection[int]) -> bool:
    """Tell whether a Reshape made these axes of one axis; Transposes may have moved them since."""
    found, producer = sorted(axes), x.producer()
    while producer is not None and is_standard(producer, "Transpose"):
        value = producer.inputs[0]
        if value is None or x.shape is None:
            return False
        order = producer.attributes.get_ints("perm") or range(x.shape.rank())[::-1]
        found, x, producer = sorted(order[axis] for axis in found), value, value.producer()
    if producer is None or not is_standard(producer, "Reshape") or producer.inputs[0] is None:
        return False
    before, after = dims_of(producer.inputs[0]), dims_of(x)
    if before is None or after is None:
        return False
    return any(set(found) <= set(of) and sum(before[i] != 1 for i in one) == 1 for one, of in groups(before, after))


def _is_stacked(node: ir.Node | None) -> bool:
    """Tell whether an operator multiplies by a stack of constant matrices, one for each expert or head."""
    if node is None or not is_standard(node, "MatMul"):
        return False
    ranks = [value.shape.rank() for value in node.inputs if value is not None and is_constant(value) and value.shape]
    return max(ranks, default=0) > 2


def _are_weighed_apart(node: ir.Node, x: ir.Value) -> bool:
    """Tell whether a node stands beside a product with a stack of matrices, its bias aside."""
    makers = [x.producer()]
    if makers[0] is not None and is_standard(makers[0], "Add"):
        makers = [value.producer() for value in makers[0].inputs if value is not None]
    return any(map(_is_stacked, makers)) or any(_is_stacked(usage.node) for usage in node.outputs[0].uses())


def _arithmetic(node: ir.Node) -> Match | NoMatch | None:
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None or is_constant(left) == is_constant(right):
        return None
    x, operand = (left, right) if is_constant(right) else (right, left)
    if x.dtype not in FLOATS:
        return None
    if x.shape is None:
        return _unranked(AFFINE_KIND, x)
    if x.shape.rank() == 0:
        return None
    array = constant64(operand)
    if array is None or array.size == 0 or array.ndim > x.shape.rank():
        return None
    for size, dim in zip(array.shape[::-1], list(x.shape)[::-1], strict=False):
        if size not in (1, dim):
            return None  # it enlarges x, or might
    rank = x.shape.rank()
    if node.op_type == "Div" and operand is left:
        return None  # c / x
    if node.op_type == "Mul":
        mapping = AffineMap.of(array, 0.0, rank)
    elif node.op_type in ("Add", "Sum"):
        mapping = AffineMap.of(1.0, array, rank)
    elif node.op_type == "Div":
        with np.errstate(divide="ignore"):
            mapping = AffineMap.of(1.0 / array, 0.0, rank)
    elif operand is right:
        mapping = AffineMap.of(1.0, -array, rank)
    else:
        mapping = AffineMap.of(-1.0, array, rank)
    scaled = node.op_type in ("Mul", "Div") and (_were_one_axis(x, mapping.axes) or _are_weighed_apart(node, x))
    if len(mapping.axes) > 1 and not (scaled or _centres(node, operand is right) or _continues(x)):
        return None
    if not mapping.finite:
        return NoMatch(AFFINE_KIND, f"the constant '{operand.name}' makes it infinite or NaN")
    if mapping.too_small is not None:
        return NoMatch(AFFINE_KIND, _too_small(mapping.too_small))
    axis = next(iter(mapping.axes), None)
    return Match(x, mapping, AFFINE_KIND, {"op": node.op_type, "axis": axis})
