"""What the results of operators are stored in, by what they read: as ONNX declares it of each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import onnx
import onnx_ir as ir

from normdeploy.graph.traits import MICROSOFT, is_quantizer, is_standard
from normdeploy.graph.walk import bodies_of

TypeOf = Callable[[ir.Value], ir.DataType | None]

_NAMED = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType}

_NAMES = {"Cast": "to", "DequantizeLinear": "output_dtype", "QuantizeLinear": "output_dtype"}
"""What the attribute is called that says a result's type, where it is not called dtype."""

_AS_OPERAND = {"EmbedLayerNormalization": 2, "MatMulIntegerToFloat": 2, "DequantizeLinear": 1, "QuantizeLinear": 2}
"""Operators of com.microsoft whose result is of the type of another operand than the first."""


def result_type(
    node: ir.Node, index: int, inputs: Sequence[ir.Value | None], type_of: TypeOf, opset: int
) -> ir.DataType | None:
    """Return what a result of an operator is stored in; None where that is not known.

    Args:
        node: the operator. index: which of its results.
        inputs: what it reads, in order. type_of: what that is stored in.
        opset: version of the operator set that gives the operator its meaning.
    """
    said = _said(node, index)
    if said is not None:
        return said
    known = [None if value is None else type_of(value) for value in inputs]
    if is_standard(node):
        declared = _declared(node.op_type, opset, index, len(inputs))
        if declared is not None:
            concrete, alike = declared
            if concrete is not None or alike:
                return concrete or next((t for place in alike if (t := known[place]) is not None), None)
    elif node.domain == MICROSOFT and node.op_type in _AS_OPERAND:
        place = _AS_OPERAND[node.op_type]
        return known[place] if place < len(known) else None
    return next((t for t in known if t is not None), None)


def _said(node: ir.Node, index: int) -> ir.DataType | None:
    """Return the type that an attribute says."""
    bodies = bodies_of(node)
    if bodies:
        place = index + (1 if node.op_type == "Loop" else 0)  # a Loop's body returns first whether it goes on
        return bodies[0].outputs[place].dtype if place < len(bodies[0].outputs) else None
    attributes = node.attributes.data
    given = attributes.get(_NAMES.get(node.op_type, "dtype"))
    if given is not None and given.type == ir.AttributeType.INT and is_standard(node) and given.as_int():
        return ir.DataType(given.as_int())
    if node.op_type == "ConstantOfShape":
        held = attributes.get("value")
        return ir.DataType.FLOAT if held is None else ir.DataType(held.as_tensor().dtype)
    if is_quantizer(node) and len(node.inputs) < 3:
        return ir.DataType.UINT8
    return None


@lru_cache(maxsize=4096)
def _declared(name: str, opset: int, index: int, count: int) -> tuple[ir.DataType | None, tuple[int, ...]] | None:
    """Return the one type of an operator's result, or the operands whose type it has; None where none is declared."""
    try:
        schema = onnx.defs.get_schema(name, opset, "")
    except onnx.defs.SchemaError:
        return None
    if not schema.outputs:
        return None
    word = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    if word in _NAMED:
        return _NAMED[word], ()
    allowed = next((tuple(c.allowed_type_strs) for c in schema.type_constraints if c.type_param_str == word), ())
    if len(allowed) == 1 and allowed[0] in _NAMED:
        return _NAMED[allowed[0]], ()
    words = [schema.inputs[min(place, len(schema.inputs) - 1)].type_str for place in range(count) if schema.inputs]
    return None, tuple(place for place, other in enumerate(words) if other == word)
