"""An operator's name and what it reads, as every law asks for them, and the operator with other attributes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.exact import ExactTensor, constant_tensor
from normdeploy.graph.traits import is_standard


def kind(node: ir.Node) -> str:
    """Return an operator's name, with its domain where it is not the standard's."""
    domain = node.domain
    return f"{domain}::{node.op_type}" if domain else node.op_type


def inputs_of(node: ir.Node) -> list[ir.Value | None]:
    """Return a node's inputs; None for absent ones, none of which stand at the end."""
    found = [value if value is not None and value.name else None for value in node.inputs]
    while found and found[-1] is None:
        found.pop()
    return found


def filling(node: ir.Node) -> Array:
    """Return the one number that a ConstantOfShape repeats, a 0 of float32 where it names none."""
    held = node.attributes.get_tensor("value", None)
    return np.zeros(1, np.float32) if held is None else held.numpy().reshape(1)


def turned_tensor(value: ir.Value | None) -> tuple[Array, ir.DataType] | None:
    """Return what a Transpose makes of stored numbers, by a view, and their type; None for anything else."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Transpose"):
        return None
    tensor = constant_tensor(node.inputs[0])
    if tensor is None or tensor.dtype == ir.DataType.STRING or isinstance(tensor, ExactTensor):
        return None
    order = node.attributes.get_ints("perm", ()) or range(len(tensor.shape))[::-1]
    if sorted(order) != list(range(len(tensor.shape))):
        return None
    return np.transpose(tensor.numpy(), order), tensor.dtype


def is_sequence(value: ir.Value) -> bool:
    """Tell whether a value is a sequence, which holds tensors and no numbers of its own."""
    node = value.producer()
    return node is not None and kind(node) in _SEQUENCES


_SEQUENCES = frozenset({"SplitToSequence", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"})


def with_attributes(node: ir.Node, attributes: Iterable[ir.Attr]) -> ir.Node:
    """Return an operator as it is but for its attributes; results without a name are none, as in the graph."""
    results = [ir.Value(name=value.name) for value in node.outputs]
    return ir.Node(node.domain, node.op_type, list(node.inputs), attributes, outputs=results, version=node.version)


def without_leading(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the axes of size 1 in front."""
    return shape[next((place for place, n in enumerate(shape) if n != 1), len(shape)) :]
