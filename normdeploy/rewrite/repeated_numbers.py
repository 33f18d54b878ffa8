"""A number that a graph repeats to a shape is read as the number: x op Expand(c, shape) = x op c.

Exporters write the mask of an attention that masks nothing as a truth value repeated to the batch at every call, cast,
chosen by, reduced, added to the scores and multiplied with the result. Its size is known to the running graph alone,
so that it is no constant; its number is. Read as one, a sum with 0 and a product with 1 are maps like any other.

A value is one number everywhere where

1. it is a constant of equal elements, or made by ConstantOfShape;
2. it moves, repeats or joins such values, or is the largest or smallest of one along axes;
3. it is computed of such values place by place, without rounding (so that no rounding decides anything behind).

It is read as the number where it is nowhere larger than the other operand of an elementwise operator. So is the
condition of a Where, which always chooses the same then and leaves (:mod:`.identities`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, constant64, constant_tensor, evaluate_node
from normdeploy.graph.edit import put_constant, take_out_unread
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.sizes import size_of
from normdeploy.rewrite.weights.conditions import EXACT, FREE_ELEMENTS

_KEEPS = Trait.MOVES | Trait.REPEATS
_ROUNDS_NOT = Trait.EXACT | Trait.ROUNDED_ONCE | Trait.CONVERTS


class ReadRepeatedNumbers(ir.passes.InPlacePass):
    """Let elementwise operators of two operands read a number where one of them is a number everywhere."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        known: dict[ir.Value, torch.Tensor | None] = {}
        modified = False
        for node in nodes_of(model):
            if has(node, Trait.BROADCASTS) and len(node.inputs) == 2:
                modified |= _read(node, 0, 1, known) or _read(node, 1, 0, known)
            elif is_standard(node, "Where"):
                modified |= _read(node, 0, 1, known) or _read(node, 0, 2, known)
        return ir.passes.PassResult(model, modified)


def _read(node: ir.Node, at: int, beside: int, known: dict[ir.Value, torch.Tensor | None]) -> bool:
    value, other = node.inputs[at], node.inputs[beside]
    if value is None or other is None or value.dtype is None or constant_tensor(value) is not None:
        return False
    number = number_of(value, known)  # asked first: mostly there is none, and sizes take longer to compare
    if number is None or not isinstance(node.graph, ir.Graph) or not _covers(other, value):
        return False
    node.replace_input_with(at, put_constant(node.graph, number.numpy(), f"{value.name}_number", value.dtype))
    take_out_unread([value])
    return True


def _covers(other: ir.Value, value: ir.Value) -> bool:
    """Tell whether a value is nowhere larger than the other operand."""
    if value.shape is None or other.shape is None or len(value.shape) > len(other.shape):
        return False
    before = len(other.shape) - len(value.shape)
    return all(size_of(value, axis) in (1, size_of(other, before + axis)) for axis in range(len(value.shape)))


def number_of(value: ir.Value | None, known: dict[ir.Value, torch.Tensor | None]) -> torch.Tensor | None:
    """Return the one number that a value holds, floats in float64; None where it holds more, or it is not known.

    Args:
        value: of any shape. known: what was found so far; gets more.
    """
    if value is None or (value.dtype not in FLOATS and value.dtype not in EXACT):
        return None
    if value not in known:
        known[value] = None  # a graph has no circles
        known[value] = _found(value, known)
    return known[value]


def _found(value: ir.Value, known: dict[ir.Value, torch.Tensor | None]) -> torch.Tensor | None:
    tensor, node = constant_tensor(value), value.producer()
    if tensor is not None:
        if not 0 < tensor.size <= FREE_ELEMENTS:
            return None
        array = constant64(value) if value.dtype in FLOATS else tensor.numpy()
        return None if array is None else _one(torch.from_numpy(np.array(array)))
    if node is None or not is_standard(node) or value.index() != 0:
        return None
    if node.op_type == "ConstantOfShape":
        held = node.attributes.get("value")
        return torch.zeros((), dtype=torch.float64) if held is None else _one(_stored(held.as_tensor()))
    if has(node, _KEEPS) or (has(node, Trait.REDUCES) and has(node, Trait.EXACT)):
        return number_of(node.inputs[0], known)
    joins = has(node, Trait.JOINS)
    if not joins and not (has(node, Trait.POINTWISE) and has(node, _ROUNDS_NOT)):
        return None
    numbers: list[torch.Tensor] = []
    for operand in node.inputs:
        number = number_of(operand, known)
        if number is None:
            return None
        numbers.append(number)
    return (_one(torch.stack(numbers)) if joins else _computed(node, numbers)) if numbers else None


def _computed(node: ir.Node, numbers: list[torch.Tensor]) -> torch.Tensor | None:
    """Return what an operator makes of numbers; None where that is rounded."""
    result = node.outputs[0]
    try:
        number = evaluate_node(node, [*numbers])[0]
    except GraphError:
        return None
    if number.numel() != 1 or result.dtype is None or number.isnan().any():
        return None
    kept = number.numpy().astype(result.dtype.numpy()).astype(number.numpy().dtype)
    return number.reshape(()) if kept == number.numpy() else None


def _stored(tensor: ir.TensorProtocol) -> torch.Tensor:
    array = tensor.numpy()
    return torch.from_numpy(array.astype(np.float64) if tensor.dtype in FLOATS else np.array(array))


def _one(numbers: torch.Tensor) -> torch.Tensor | None:
    """Return the number that all elements are; None where they differ."""
    first = numbers.reshape(-1)[0]
    return first if bool((numbers == first).all()) else None
