"""What the standard declares of an operator's attributes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir


def declared_attributes(node: ir.Node, opset: int) -> Mapping[str, onnx.defs.OpSchema.Attribute]:
    """Return what is declared of an operator's attributes, by name; nothing of an operator that is not the standard's.

    Args:
        node: the operator. opset: the version of its domain.
    """
    try:
        return onnx.defs.get_schema(node.op_type, opset, node.domain).attributes
    except onnx.defs.SchemaError:
        return {}


def default_of(declared: onnx.defs.OpSchema.Attribute | None) -> ir.Attr | None:
    """Return what an attribute is where it is absent; None where nothing is declared of that."""
    if declared is None or not declared.default_value.name:
        return None
    return ir.serde.deserialize_attribute(declared.default_value)
