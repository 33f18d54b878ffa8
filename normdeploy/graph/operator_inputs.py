"""What an operator reads: inputs that may be absent, and constants among them, exactly."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.exact import constant_tensor, tensor64


def array_of(value: ir.Value) -> Array:
    """Return a float constant's exact value."""
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor64(tensor)


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return a constant's shape."""
    tensor = constant_tensor(value)
    assert tensor is not None
    return tuple(tensor.shape.numpy())


def dtype_of(value: ir.Value) -> ir.DataType:
    """Return a constant's dtype."""
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor.dtype


def optional(node: ir.Node, index: int) -> ir.Value | None:
    """Return an optional input: None where it is absent or has the empty name."""
    if len(node.inputs) <= index:
        return None
    value = node.inputs[index]
    return None if value is None or value.name == "" else value


def required(node: ir.Node, index: int) -> ir.Value:
    """Return an input that the operator cannot do without."""
    value = optional(node, index)
    if value is None:
        raise ValueError(f"{node.op_type} {node.name!r} lacks input {index}; expected a valid graph")
    return value
