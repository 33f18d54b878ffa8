"""The weight of a linear operator in front of which a map stands: a float constant, or one stored in integers.

The operator's inputs are scaled by s, so its weight takes s along the axis of its inputs; its bias takes the sum of
weight times t. Integers are not rounded again (see :mod:`.absorb_quantized`): their steps take |s|, which needs one
number for all inputs, or steps along the axis of the inputs. t times a weight of integers is computed from the numbers
that they stand for.

Refused:
- the weight is computed at run time;
- s differs between inputs, and the steps of a quantized weight do not (one step would have to become one per input,
  which no integer kernel of a runtime knows);
- the new weight overflows float16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor, evaluate_region
from normdeploy.rewrite.affine.absorb_quantized import is_quantized
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    array_of,
    contracted,
    copy_cost,
    dtype_of,
    fits,
    integer,
    is_constant,
    optional,
    required,
    scaled,
    shape_of,
)
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array, varying
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, Refusal


def overflows(node: ir.Node, dtype: ir.DataType | None) -> Refusal:
    """Return the refusal of weights, or of a bias, that would not fit their dtype."""
    what = "their type" if dtype is None else dtype.name.lower()
    return Refusal(f"the weights of {describe(node)} would overflow {what}", node)


def computed(node: ir.Node) -> Refusal:
    """Return the refusal of a weight that is no constant."""
    return Refusal(f"the weight of {describe(node)} is computed at run time", node)


def is_fixed(weight: ir.Value) -> bool:
    """Tell whether a weight is a constant, of floats or of integers with steps."""
    return is_constant(weight) or is_quantized(weight)


def shape_of_weight(weight: ir.Value) -> tuple[int, ...]:
    """Return the shape of a fixed weight."""
    return shape_of(weight if is_constant(weight) else _stored(weight))


def dtype_of_weight(weight: ir.Value) -> ir.DataType:
    """Return the float type of a fixed weight: of its steps, where it is stored in integers."""
    return dtype_of(weight if is_constant(weight) else _steps(weight))


def name_of_weight(weight: ir.Value) -> str:
    """Return the name under which a fixed weight is stored."""
    return str((weight if is_constant(weight) else _stored(weight)).name)


def sum_over(weight: ir.Value, factor: Array, axes: Sequence[int]) -> Array:
    """Return the sum of a fixed weight times ``factor`` over ``axes``, which the result keeps with size 1."""
    if is_constant(weight):
        return contracted(weight, factor, axes)
    return np.asarray((values_of(weight) * factor).sum(axis=tuple(axes), keepdims=True))


def values_of(weight: ir.Value) -> Array:
    """Return a fixed weight in float64: what its integers stand for, where it is stored so."""
    if is_constant(weight):
        return array_of(weight)
    return np.asarray(evaluate_region([_producer(weight)], {}, [weight])[0].numpy(), dtype=np.float64)


def unscaled(weight: ir.Value) -> BackwardPlan:
    """Plan a fixed weight as it is: one of integers is a part of the region, whose check needs what they stand for."""
    if is_constant(weight):
        return BackwardPlan(lambda _region: weight)
    dequantize = _producer(weight)
    return BackwardPlan(lambda region: region.replace(dequantize, dequantize.inputs).outputs[0], (dequantize,))


def take(node: ir.Node, weight: ir.Value, factor: Array, search: Forward) -> BackwardPlan | Refusal:
    """Plan a fixed weight times ``factor``, an array of its rank that broadcasts against it."""
    if (factor == 1).all():
        return unscaled(weight)
    if is_constant(weight):
        if not fits(dtype_of(weight), lambda: array_of(weight) * factor):
            return overflows(node, dtype_of(weight))
        return BackwardPlan(lambda region: scaled(region, weight, factor), cost=copy_cost(weight, node))
    mapping = AffineMap.of(factor, 0.0, factor.ndim)
    dequantize = _producer(weight)
    steps = array_of(_steps(weight))
    in_blocks = bool(integer(dequantize, "block_size", 0))
    along = {integer(dequantize, "axis", 1) % factor.ndim} if steps.size > 1 else set()
    if not in_blocks and not varying(mapping.scale) <= along:
        return Refusal(
            f"the quantized weight of {describe(node)} has no step per input, and the scale differs between inputs",
            node,
        )
    return Backward(search.table, search.graph).into(weight, mapping, node)


def bias_refused(node: ir.Node, mapping: AffineMap, *, called: str = "bias", at: int = 2) -> Refusal | None:
    """Return why a map's shift cannot go into input ``at`` of ``node``, or None; without shift it stays as it is."""
    bias = optional(node, at)
    if mapping.no_shift or bias is None or is_constant(bias):
        return None
    how = "quantized" if is_quantized(bias) else "computed at run time"
    return Refusal(f"the {called} of {describe(node)} is {how}, and the shift is not zero", node)


def _producer(weight: ir.Value) -> ir.Node:
    producer = weight.producer()
    assert producer is not None
    return producer


def _stored(weight: ir.Value) -> ir.Value:
    return required(_producer(weight), 0)


def _steps(weight: ir.Value) -> ir.Value:
    value = _producer(weight).inputs[1]
    assert constant_tensor(value) is not None
    return required(_producer(weight), 1)
