"""What may be evaluated: the conditions of :mod:`.evaluate_constants`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import bodies_of

FREE_ELEMENTS = 1 << 18
"""Results up to this many elements (1 MiB of float32) are always worth keeping as a constant."""

GROWTH = 2
"""A larger result may have at most this many times the elements of the constants it is made of."""

_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
EXACT = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
    }
)
"""Types of constants that are held as they are."""


def depends_on_constants_only(node: ir.Node, results: dict[ir.Value, torch.Tensor]) -> bool:
    """Tell whether conditions 1 to 3 hold."""
    if has(node, Trait.RANDOM) or node.op_type in _QUANTIZED:
        return False
    if bodies_of(node):
        return False
    present = [value for value in node.inputs if value is not None]
    return bool(present) and all(value in results or constant_tensor(value) is not None for value in present)


def promised_elements(node: ir.Node) -> int:
    """Return the largest result size the graph itself states, before anything is computed."""
    shapes = [output.shape for output in node.outputs if output.shape is not None]
    return max((math.prod(shape.numpy()) for shape in shapes if shape.is_static()), default=0)


def storable(output: ir.Value, result: torch.Tensor) -> bool:
    """Tell whether a result has a type that constants are held in."""
    if output.dtype is None:
        # a graph without types: the result's own type says it for integers; a float could have been of any width
        if result.is_floating_point():
            return False
        output.dtype = ir.DataType.from_numpy(result.numpy().dtype)
    return output.dtype in FLOATS or output.dtype in EXACT


def rounding_may_decide(
    node: ir.Node, operands: Sequence[torch.Tensor | None], results: Mapping[ir.Value, torch.Tensor]
) -> bool:
    """Tell whether a result may jump where an operand is rounded otherwise."""
    if not any(operand is not None and operand.is_floating_point() for operand in operands):
        return False
    jumps = has(node, Trait.DECIDES) or is_standard(node, "Mod", "ThresholdedRelu")
    return jumps or any(not result.is_floating_point() for result in results.values())
