"""Both ways: the shift of a map goes towards the inputs and its scale towards the outputs, in one step.

s x + t = s (x + u) with u = t / s. Where x is a residual stream, f(s x + t) + x: whatever writes x adds u to its bias,
y = x + u; f takes s into its weights, f(s y); and the sum takes u off again where its other operand ends in a bias,
(f(s y) - u) + y. Nothing is left of the map, though f has no bias for its shift (attention whose queries, keys and
values have none) or could not use one (a convolution that pads with zeros).

Conditions:
- s != 0 everywhere, and both ways together cost less than the pass over x, and less than any one way;
- the stream carries u and is rounded with it, so u may not be much larger than what the map brings to 1: the root mean
  square of u over the channels is at most twice the median of 1 / |s|. A norm has s = gamma / sigma; a channel that
  training has almost switched off (gamma near 0) has a huge u.

Not done through an activation: relu(s x + t) = s relu(x + u) for s > 0, but a norm in front of an activation is kept as
it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import storable
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region
from normdeploy.rewrite.affine.table import TABLE

LARGEST = 2.0
"""Largest root mean square of u, in units of the median of 1 / |s|."""

_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "PRelu", "Clip"})


@dataclass(frozen=True)
class BothWays:
    """A plan for a whole map.

    Args:
        behind: who takes the shift t / s, and who takes it off again.
        ahead: who takes the scale.
    """

    behind: BackwardPlan
    ahead: ForwardPlan


def both_ways(graph: ir.Graph, node: ir.Node, mapping: AffineMap, limit: float) -> BothWays | None:
    """Return the plan that takes an Affine's map apart; None where there is none that costs less than ``limit``."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    shift = _shift_in_front(mapping)
    if shift is None or mapping.no_scale or not storable(result.dtype, shift.shift):
        return None
    behind = Backward(TABLE, graph, offset=carry_offset).plan(source, shift, node)
    if isinstance(behind, Refusal):
        return None
    ahead = Forward(TABLE, graph, visited={node, *behind.old}).plan(result, mapping.without_shift())
    if isinstance(ahead, Refusal) or any(taker.op_type in _ACTIVATIONS for taker in ahead.old):
        return None
    return BothWays(behind, ahead) if behind.cost + ahead.cost < limit else None


def carry_offset(search: Backward, value: ir.Value, mapping: AffineMap, reader: ir.Node) -> BackwardPlan | Refusal:
    """Plan that the producer of a shared value takes a shift, and its other readers the opposite one."""
    found = search.enter(value, mapping)
    if isinstance(found, Refusal):
        return found
    others = Forward(search.table, search.graph, visited={*search.entered, *found.old, reader})
    rest = others.plan(value, mapping.with_shift(-mapping.shift), but=reader)
    if isinstance(rest, Refusal):
        return rest
    search.entered.update(rest.old)
    producer, onward = found, rest

    def build(region: Region) -> ir.Value:
        shifted = producer.build(region)
        onward.build(region, shifted)
        return shifted

    return BackwardPlan(
        build, (*producer.old, *onward.old), (*producer.takers, *onward.into), producer.cost + onward.cost
    )


def _shift_in_front(mapping: AffineMap) -> AffineMap | None:
    """Return the map x + t / s; None where s is zero somewhere, t is zero, or t / s is too large."""
    first = mapping.shift_in_front()
    if mapping.no_shift or first is None:
        return None
    with np.errstate(over="ignore"):
        size = float(np.sqrt(np.square(first.shift).mean()))
        limit = LARGEST * float(np.median(1 / np.abs(mapping.scale)))
    return first if size <= limit < np.inf else None
