"""What makes integers of numbers: QuantizeLinear (and a Clip behind it), Round, Sign, a comparison with Where."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, constant64, constant_tensor
from normdeploy.graph.edit import only_reader
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.operators.narrow_types import quantized_type
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.affine_node import is_affine
from normdeploy.rewrite.integer.integer_source import BYTES, Stays, clamp_of, scalar
from normdeploy.rewrite.integer.monotone import Ending, Exceeds, Rounds, Signs

_OPEN = 2**62
"""Ends of the integers of a Round, which has none."""

_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_FOLLOWED = ("Relu", "Clip", "LeakyRelu", "Add", "Mul", "Sub", "Div", "BatchNormalization", "Neg")
_LONGEST = 32  # operators from one quantizer to the next


@dataclass(frozen=True)
class Quantizer:
    """A quantizer of the graph.

    Args:
        nodes: its operators, the first one reads ``data``.
        data: the numbers. result: the integers, or the float value that is one of few numbers.
        ending: the function.
        dtype: type of the integers; None for a result in floats.
        values: what the result is at level 0 and 1, where that is not the level (a comparison).
    """

    nodes: tuple[ir.Node, ...]
    data: ir.Value
    result: ir.Value
    ending: Ending
    dtype: ir.DataType | None = None
    values: tuple[Fraction, Fraction] | None = None


def quantizer_of(node: ir.Node) -> Quantizer | None:
    """Describe the quantizer that starts with an operator; None where it is none of ours.

    Raises:
        Stays: it is one that cannot be described.
    """
    data = node.inputs[0] if node.inputs else None
    if data is None or (constant_tensor(data) is not None and not is_standard(node, *_COMPARISONS)):
        return None
    if is_standard(node, "QuantizeLinear"):
        return _linear(node, data)
    if data.dtype not in FLOATS:
        return None
    if is_standard(node, "Round"):
        return Quantizer((node,), data, node.outputs[0], Rounds(Fraction(1), 0, -_OPEN, _OPEN))
    if is_standard(node, "Sign"):
        return Quantizer((node,), data, node.outputs[0], Signs())
    return _comparison(node) if is_standard(node, *_COMPARISONS) else None


def _linear(node: ir.Node, data: ir.Value) -> Quantizer:
    steps, zero = constant64(node.inputs[1]), optional(node, 2)
    offset = constant64(zero)
    if steps is None or (zero is not None and offset is None):
        raise Stays("its step is computed at run time")
    if not (np.isfinite(steps) & (steps > 0)).all():
        raise Stays("it has a step that is not above 0")
    dtype = quantized_type(node)
    assert dtype is not None  # its zero point is a constant
    if dtype not in BYTES:
        raise Stays(f"it makes {dtype.name.lower()}, and layers on integers read int8 or uint8")
    if steps.size > 1 and (node.attributes.get_int("block_size", 0) != 0 or data.shape is None):
        raise Stays("it has steps per block, or reads data of unknown rank")
    if offset is not None and len(np.unique(offset)) > 1:
        raise Stays("it has several zero points")
    low, high = BYTES[dtype]
    nodes: tuple[ir.Node, ...] = (node,)
    result = node.outputs[0]
    behind = [usage.node for usage in result.uses()]
    if len(behind) == 1 and is_standard(behind[0], "Clip") and not result.is_graph_output():
        clamped = clamp_of(behind[0])
        if clamped is not None:
            low = low if clamped[1] is None else max(low, int(clamped[1]))
            high = high if clamped[2] is None else min(high, int(clamped[2]))
            nodes, result = (node, behind[0]), behind[0].outputs[0]
    point = 0 if offset is None else int(offset.reshape(-1)[0])
    if steps.size == 1:
        return Quantizer(nodes, data, result, Rounds(Fraction(steps.reshape(()).item()), point, low, high), dtype)
    raise Stays("it has a step per channel, and a layer behind it sums over channels")


def _comparison(node: ir.Node) -> Quantizer | None:
    """Return x >= c ? a : b and its kin."""
    chooser = only_reader(node.outputs[0])
    if chooser is None or not is_standard(chooser, "Where") or chooser.inputs[0] is not node.outputs[0]:
        return None
    right = scalar(node.inputs[1])
    bound = scalar(node.inputs[0]) if right is None else right
    data = node.inputs[0 if right is not None else 1]
    yes, no = scalar(chooser.inputs[1]), scalar(chooser.inputs[2])
    if bound is None or data is None or yes is None or no is None or constant_tensor(data) is not None:
        return None
    greater = node.op_type.startswith("Greater") == (right is not None)
    with_bound = node.op_type.endswith("OrEqual")
    # x < c is not x >= c, and c < x is x > c
    strict = not with_bound if greater else with_bound
    values = (no, yes) if greater else (yes, no)
    return Quantizer((node, chooser), data, chooser.outputs[0], Exceeds(bound, strict), values=values)


def leads_to_quantizer(quantizer: Quantizer) -> bool:
    """Tell whether all that reads a QuantizeLinear's integers is one chain of maps and clamps to another quantizer.

    The outer one's chain takes the inner one along.
    """
    if quantizer.dtype is None:
        return False
    value = quantizer.result
    for _ in range(_LONGEST):
        readers = list(value.uses())
        if len(readers) != 1 or value.is_graph_output():
            return False
        node: ir.Node = readers[0].node
        if value is quantizer.result:
            if not is_standard(node, "DequantizeLinear"):
                return False
        else:
            try:
                if quantizer_of(node) is not None and node.inputs[0] is value:
                    return True
            except Stays:
                return False
            if not (is_affine(node) or is_standard(node, *_FOLLOWED)):
                return False
        value = node.outputs[0]
    return False
