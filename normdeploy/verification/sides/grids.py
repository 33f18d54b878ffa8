"""What a graph's quantizers of activations swallow and what they turn: runs without their rounding, and with flips.

A quantizer hides every change that is smaller than its step, and makes a step of a change that crosses a tie. So two
runs beside the graph's own tell what the outputs alone do not. *Unrounded*, clamp(x / scale + zero) in the place of
clamp(round(x / scale) + zero): two graphs of one function are equal there to float64's rounding, and a wrong constant
shows however small it is. *Flipped*: the values nearest to a tie go to the other side of it, which is what a runtime
does to a few of them that rounds a bias or adds in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import Evaluator, constant64, constant_tensor
from normdeploy.graph.evaluate import StandIn
from normdeploy.graph.operator_evaluation import opset_of
from normdeploy.graph.operators import OPERATORS, Call
from normdeploy.graph.operators.call import Stored
from normdeploy.graph.operators.integer_operators import signed
from normdeploy.graph.operators.narrow_types import ENDS, NARROW_FLOATS, integers_in, quantized_type
from normdeploy.graph.operators.qonnx import QONNX
from normdeploy.graph.operators.quantize_linear import spread_along
from normdeploy.graph.traits import MICROSOFT, is_quantizer, is_standard, kind_of
from normdeploy.graph.walk import nodes_of

SHARE = 0.01
"""Share of a quantizer's values that a runtime may put on the other side of a tie."""

FEWEST = 4
"""Values that are turned at each quantizer at least: of one alone it would matter too much which one it is."""

_EQUAL = 1e-9
"""Distance from a tie, in steps, within which values count as equal."""

RESULT_ZERO = {
    ("", "QLinearConv"): 7,
    ("", "QLinearMatMul"): 7,
    (MICROSOFT, "QGemm"): 8,
    (MICROSOFT, "QLinearAdd"): 7,
    (MICROSOFT, "QLinearAveragePool"): 4,
    (MICROSOFT, "QLinearConcat"): 1,
    (MICROSOFT, "QLinearConv"): 7,
    (MICROSOFT, "QLinearGlobalAveragePool"): 4,
    (MICROSOFT, "QLinearLeakyRelu"): 4,
    (MICROSOFT, "QLinearMul"): 7,
    (MICROSOFT, "QLinearReduceMean"): 4,
    (MICROSOFT, "QLinearSigmoid"): 4,
    (MICROSOFT, "QLinearSoftmax"): 4,
    (MICROSOFT, "QLinearWhere"): 8,
}
"""Operators that quantize their own result, and which input is its zero point: without one its type is not known."""


def rounding_themselves(model: ir.Model) -> str:
    """Return the kinds of a graph's operators that quantize their own results, in words; "" where there are none."""
    return ", ".join(sorted({node.op_type for node in nodes_of(model) if kind_of(node) in RESULT_ZERO}))


def _quantizes_its_result(node: ir.Node) -> bool:
    """Tell whether an operator reads integers as what they stand for, and quantizes its own result."""
    place = RESULT_ZERO.get(kind_of(node), len(node.inputs))
    return place < len(node.inputs) and node.inputs[place] is not None


def _quantizers(evaluator: Evaluator, *, constants: bool = False) -> list[ir.Node]:
    """Return the quantizers of computed values (QuantizeLinear, Round), on request those of constants, too."""
    return [
        node
        for node in evaluator.graph
        if (is_standard(node, "Round") or (is_quantizer(node) and quantized_type(node) not in NARROW_FLOATS))
        and (constants or constant_tensor(node.inputs[0]) is None)
    ]


def quantizes(evaluator: Evaluator) -> bool:
    """Tell whether a graph quantizes anything that it computes."""
    return bool(_quantizers(evaluator))


def _only_restored(node: ir.Node) -> bool:
    """Tell whether only operators that restore integers read them (a Clip between them aside); Round makes floats."""
    result = node.outputs[0]
    if node.op_type == "Round":
        return True
    if result.is_graph_output():
        return False
    readers = [usage.node for usage in result.uses()]
    return all(
        reader.op_type == "DequantizeLinear"
        or _quantizes_its_result(reader)
        or (reader.op_type == "Clip" and _only_restored(reader))
        for reader in readers
    )


def _own_results(evaluator: Evaluator, stored: Stored) -> dict[ir.Node, StandIn]:
    """Return what stands for the operators that quantize their own results where these are not rounded."""

    def stand_in(node: ir.Node) -> StandIn:
        call = Call(node, opset_of(node, evaluator.graph.opset_imports), evaluator.dtype, stored)

        def compute(inputs: Sequence[Tensor | None]) -> Tensor | Sequence[Tensor]:
            return OPERATORS[kind_of(node)](call, list(inputs))

        return compute

    return {node: stand_in(node) for node in evaluator.graph if _quantizes_its_result(node) and _only_restored(node)}


def _unrounded(node: ir.Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, tuple[float, float]]:
    """Return x / scale + zero, and the range of the integers."""
    x, scale, zero = (*inputs, None, None)[:3]
    assert x is not None
    if node.op_type == "Round":
        return x, (-math.inf, math.inf)
    assert scale is not None
    whole = x / spread_along(node, scale, x)
    whole = whole if zero is None else whole + spread_along(node, zero.to(x.dtype), x)
    return whole, ENDS[_stored(node, zero)]


def _stored(node: ir.Node, zero: Tensor | None) -> ir.DataType:
    """Return the integers that a quantizer stores."""
    return quantized_type(node, zero) or ir.DataType.UINT8


def _cut(node: ir.Node, low: float, high: float) -> tuple[float, float]:
    """Return the range of a quantizer's integers behind the Clip that makes it narrower than its type."""
    readers = [usage.node for usage in node.outputs[0].uses()]
    if len(readers) != 1 or not is_standard(readers[0], "Clip") or node.outputs[0].is_graph_output():
        return low, high
    bounds = [constant64(value) for value in readers[0].inputs[1:]]
    least, most = [*bounds, None, None][:2]
    return (
        low if least is None else max(low, float(least.reshape(()))),
        high if most is None else min(high, float(most.reshape(()))),
    )


def unrounded(evaluator: Evaluator) -> dict[ir.Node, StandIn]:
    """Return what stands for the quantizers of a graph in a run without their rounding."""

    def stand_in(node: ir.Node) -> StandIn:
        def compute(inputs: Sequence[Tensor | None]) -> Tensor:
            value, (low, high) = _unrounded(node, inputs)
            return value.clamp(low, high)

        return compute

    found = {node: stand_in(node) for node in _quantizers(evaluator) if _only_restored(node)}
    return found | _own_results(evaluator, Stored.CUT)


def unquantized(evaluator: Evaluator) -> dict[ir.Node, StandIn]:
    """Return what stands for a graph's quantizers in a run without them: x / scale + zero; a weight stored stays.

    Those whose integers begin at zero let no negative number through: such a one may be the Relu, too.
    """

    def stand_in(node: ir.Node) -> StandIn:
        def compute(inputs: Sequence[Tensor | None]) -> Tensor:
            value, (low, high) = _unrounded(node, inputs)
            if node.op_type == "Round":
                return value
            zero = inputs[2] if len(inputs) > 2 else None
            return signed(value, None if zero is None else spread_along(node, zero, value), int(low), int(high))

        return compute

    found = {node: stand_in(node) for node in _quantizers(evaluator, constants=True) if _only_restored(node)}
    cuts = [usage.node for node in found for usage in node.outputs[0].uses() if usage.node.op_type == "Clip"]
    foreign = [node for node in evaluator.graph if (node.domain, node.op_type) in QONNX]
    return found | dict.fromkeys((*cuts, *foreign), _first) | _own_results(evaluator, Stored.FREE)


def _first(inputs: Sequence[Tensor | None]) -> Tensor:
    """Return an operator's data as it is."""
    assert inputs[0] is not None
    return inputs[0]


def turned(size: int) -> int:
    """Return how many of a quantizer's values are turned, of so many."""
    return min(size, max(FEWEST, math.ceil(SHARE * size)))


def flipped(evaluator: Evaluator) -> dict[ir.Node, StandIn]:
    """Return what stands for the quantizers of a graph where the values nearest to ties go to the other side."""

    def stand_in(node: ir.Node) -> StandIn:
        def compute(inputs: Sequence[Tensor | None]) -> Tensor:
            value, (low, high) = _unrounded(node, inputs)
            whole = torch.round(value)
            far = (value - torch.floor(value) - 0.5).abs().reshape(-1)
            # beyond the range both sides of a tie are one integer, and nothing would be flipped
            least, most = _cut(node, low, high)
            far = far.masked_fill(((value < least - 0.5) | (value > most + 0.5)).reshape(-1), math.inf)
            count = min(int(far.isfinite().sum()), turned(far.numel()))
            # equal values, as of rows that saturate alike, turn together
            limit = torch.topk(far, count, largest=False).values.max() + _EQUAL if count else -math.inf
            chosen = torch.nonzero(far <= limit).reshape(-1)
            other = whole.reshape(-1).clone()
            other[chosen] += torch.where(value.reshape(-1)[chosen] >= whole.reshape(-1)[chosen], 1.0, -1.0).to(
                other.dtype
            )
            result = other.reshape(whole.shape).clamp(low, high)
            zero = inputs[2] if len(inputs) > 2 else None
            if node.op_type == "Round":
                return result
            return result.to(integers_in(_stored(node, zero)))

        return compute

    return {node: stand_in(node) for node in _quantizers(evaluator)}
