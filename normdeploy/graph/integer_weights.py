"""Quantizers of constants, evaluated: the integers that a runtime would compute of a weight at every start.

Training tools keep weights in floats with a quantizer behind them, often with arithmetic in front of it (the scale of a
BatchNorm, as torch.ao's fused layers have it). The integers are those that the network computes itself, operator by
operator in its own precision: a weight that lies on a tie (and the largest ones do, by construction) would turn the
other way in float64::

    q = clamp(round(w / scale) + zero)         ONNX
    q = clamp(round(w (1 / scale)) + zero)     torch: with the reciprocal, in float32
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Ints
from normdeploy.errors import GraphError
from normdeploy.graph.edit import constant_of, free_name, rename, take_out_unread, take_place
from normdeploy.graph.evaluated_region import evaluate_region
from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.operators.narrow_types import ENDS, quantized_type
from normdeploy.graph.operators.quantize_linear import spread_along
from normdeploy.graph.operators.random import RANDOM
from normdeploy.graph.walk import bodies_of

_INTEGERS = frozenset(ENDS) - {ir.DataType.INT2, ir.DataType.UINT2}
_MOST = 64
"""Operators in front of a weight's quantizer that are evaluated."""


def quantize_constants(graph: ir.Graph, *, reciprocal: bool) -> int:
    """Replace every quantizer of a constant, and a Clip behind it, by the integers; return how many.

    Args:
        graph: changed in place.
        reciprocal: compute as torch does.
    """
    changed = 0
    for node in list(graph):
        if node.domain or node.outputs[0].is_graph_output():
            continue
        if node.op_type == "QuantizeLinear":
            found = _quantized(node, reciprocal=reciprocal)
        elif node.op_type == "Clip":
            found = _clipped(node)
        else:
            continue
        if found is not None:
            if reciprocal and node.op_type == "QuantizeLinear":
                _keep_step(graph, node)
            _replace(graph, node, *found)
            changed += 1
    return changed


def _cone(values: list[ir.Value]) -> list[ir.Node] | None:
    """Return the operators that compute values from constants, in order; None where there is anything else."""
    found: list[ir.Node] = []
    pending = list(values)
    while pending:
        value = pending.pop()
        node = value.producer()
        if constant_tensor(value) is not None:
            continue
        if node is None or node.op_type in RANDOM or len(found) > _MOST:
            return None
        if bodies_of(node):
            return None
        found = [node, *(other for other in found if other is not node)]
        pending += [operand for operand in node.inputs if operand is not None and operand.name != ""]
    return found


Integers = tuple[Ints, ir.DataType]


def _quantized(node: ir.Node, *, reciprocal: bool) -> Integers | None:
    """Return the integers of a quantizer whose operands are all constants, and their type."""
    operands = [value for value in node.inputs if value is not None and value.name != ""]
    cone = _cone(operands)
    if cone is None:
        return None
    tensor, given = constant_tensor(operands[0]), operands[0].dtype
    precise = ir.DataType.DOUBLE in (given, None if tensor is None else tensor.dtype)
    dtype = torch.float64 if precise else torch.float32
    try:
        x, scale, *rest = evaluate_region(cone, {}, operands, dtype=dtype)
    except GraphError:
        return None
    kind = quantized_type(node, rest[0] if rest else None)
    if kind not in _INTEGERS:
        return None
    low, high = ENDS[kind]
    try:
        step = spread_along(node, scale, x)
        zero = spread_along(node, rest[0].to(dtype), x) if rest else torch.zeros((), dtype=dtype)
    except ValueError:  # its axis is none of the weight's: no runtime takes it
        return None
    whole = torch.round(x * (1.0 / step) if reciprocal else x / step) + zero
    if not bool(torch.isfinite(whole).all()):
        return None
    return whole.clamp(low, high).numpy().astype(np.int64), kind


def _keep_step(graph: ir.Graph, node: ir.Node) -> None:
    """Store a weight's step as the module computes it, in its own precision, for all that read it."""
    step = node.inputs[1]
    if step is None or constant_tensor(step) is not None or step.dtype not in (None, ir.DataType.FLOAT):
        return
    cone = _cone([step])
    if cone is None:
        return
    (found,) = evaluate_region(cone, {}, [step], dtype=torch.float32)
    name = str(step.name)
    value = constant_of(ir.Tensor(found.numpy()), name)
    take_place(value, step, named=False)
    take_out_unread([step])
    rename(value, name if step.graph is None else free_name(graph, f"{name}.stored"))
    graph.register_initializer(value)


def _clipped(node: ir.Node) -> Integers | None:
    """Return integers cut between constants, and their type."""
    tensor = constant_tensor(node.inputs[0])
    if tensor is None or tensor.dtype not in _INTEGERS:
        return None
    whole = tensor.numpy().astype(np.int64)
    for value, cut in zip(node.inputs[1:], (np.maximum, np.minimum), strict=False):
        if value is None or value.name == "":
            continue
        bound = constant_tensor(value)
        if bound is None or bound.size != 1:  # a Clip takes one number; what else a file holds fails when it is run
            return None
        whole = cut(whole, bound.numpy().astype(np.int64).reshape(()))
    return whole, tensor.dtype


def _replace(graph: ir.Graph, node: ir.Node, integers: Ints, kind: ir.DataType) -> None:
    result, source = node.outputs[0], node.inputs[0]
    weight = _weight_behind(source)
    value = constant_of(ir.Tensor(integers.astype(kind.numpy()), dtype=kind), "")
    operands = [operand for operand in node.inputs if operand is not None]
    take_place(value, result, named=False)
    graph.remove(node, safe=True)
    take_out_unread(operands)
    wanted = str(result.name) if weight is None else str(weight.name)
    rename(value, wanted if wanted not in graph.initializers else free_name(graph, f"{wanted}.integers"))
    graph.register_initializer(value)


def _weight_behind(value: ir.Value | None) -> ir.Value | None:
    """Return the constant of a quantizer's operand that is largest: its weight."""
    cone = [] if value is None else _cone([value])
    if value is None or cone is None:
        return None
    leaves = [value, *(operand for node in cone for operand in node.inputs if operand is not None)]
    named = [leaf for leaf in leaves if leaf.is_initializer() and constant_tensor(leaf) is not None]
    return max(named, key=lambda leaf: constant_tensor(leaf).size, default=None)  # type: ignore[union-attr] # asked above
