"""What the results of operators are stored in, by what they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from normdeploy.graph.traits import is_standard

_TYPES = dict.fromkeys(("ConvInteger", "MatMulInteger"), ir.DataType.INT32) | dict.fromkeys(
    ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), ir.DataType.BOOL
)
"""Types of results that are not those of what is read."""


def result_type(
    node: ir.Node, inputs: Sequence[ir.Value], type_of: Callable[[ir.Value], ir.DataType | None]
) -> ir.DataType | None:
    """Return what an operator's results are stored in; None where that is not known.

    Args:
        node: the operator. inputs: what it reads. type_of: what that is stored in.
    """
    name = node.op_type if is_standard(node) else ""
    if name in ("Cast", "DequantizeLinear") and "to" in node.attributes:
        return ir.DataType(node.attributes["to"].as_int())
    if name in _TYPES:
        return _TYPES[name]
    if name == "QuantizeLinear":
        given = node.attributes.get_int("output_dtype", 0)
        return type_of(inputs[2]) if len(inputs) > 2 else ir.DataType(given or int(ir.DataType.UINT8))
    if name == "CastLike" and len(inputs) > 1:
        return type_of(inputs[1])
    for value in inputs[1:] if name in ("Where", "DequantizeLinear") else inputs:
        if type_of(value) is not None:
            return type_of(value)
    return None
