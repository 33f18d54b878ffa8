"""Evaluate one operator in float64 (or float32) with torch: our own table first, then onnx's reference implementation.

Every float is promoted to one dtype; constants too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph.exact import FLOATS, ExactTensor, held_tensor, tensor64
from normdeploy.graph.fitting_sizes import may_misfit, misfit
from normdeploy.graph.onnx_reference import reference_session, run_reference
from normdeploy.graph.operators import OPERATORS, Call
from normdeploy.graph.operators.asked_sizes import require_result
from normdeploy.graph.traits import is_standard, kind_of

_DEFAULT_OPSET = 20
OPERATOR_ERRORS = (ValueError, RuntimeError, IndexError, TypeError, KeyError, ArithmeticError)
"""What torch and our implementations raise on operands that do not fit."""
_NARROW_INTEGERS = frozenset(kind for kind in ir.DataType if kind.is_integer() and kind.bitwidth < 8)
_NARROW_FLOATS = frozenset(kind for kind in ir.DataType if kind.is_floating_point() and kind not in FLOATS)


def promote(array: Array | Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor, floats as ``dtype``, everything else as it is."""
    if isinstance(array, Tensor):
        return array.to(dtype) if array.is_floating_point() else array
    array = np.asarray(array)
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float64)
    if array.dtype.kind == "f":
        return torch.from_numpy(np.array(array, dtype=np.float64)).to(dtype)
    return torch.from_numpy(np.array(array))


def as_constant(tensor: ir.TensorProtocol, dtype: torch.dtype) -> Tensor:
    """Return a constant, floats as ``dtype``; it may share the constant's memory.

    Raises:
        GraphError: it holds words.
    """
    if tensor.dtype is ir.DataType.STRING:
        raise GraphError(
            f"constant {tensor.name!r} holds words; expected numbers: only onnxruntime computes with words"
        )
    if dtype == torch.float32 and tensor.dtype is ir.DataType.FLOAT and not isinstance(tensor, ExactTensor):
        value = tensor.numpy()  # by way of float64 it is the same number
    else:
        value = tensor64(tensor)
    if tensor.dtype in _NARROW_INTEGERS:
        value = value.astype(np.int8)  # torch has no operators for these types, nor for floats of 8 bits and fewer
    elif tensor.dtype in _NARROW_FLOATS:
        return torch.from_numpy(value.astype(np.float64)).to(dtype)
    shared = as_operand(value)
    return shared.to(dtype) if tensor.dtype in FLOATS else shared


def as_operand(array: Array) -> Tensor:
    """Return an array as an operator reads it, in the same memory wherever torch takes that.

    Operators never write to what they read, so a weight need not be copied. Torch warns of read-only memory, and takes
    neither another order of bytes nor rows that run backwards.
    """
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    plain = native.flags.writeable and min(native.strides, default=0) >= 0
    return torch.from_numpy(native if plain else np.array(native))


def opset_of(node: ir.Node, imports: Mapping[str, int]) -> int:
    """Return the operator set version that gives a node its meaning."""
    return node.version or imports.get(node.domain, 1 if node.domain else _DEFAULT_OPSET)


def imports_of(node: ir.Node) -> Mapping[str, int]:
    """Return the versions that a node's own graph imports."""
    graph = node.graph
    if isinstance(graph, ir.Graph):
        return graph.opset_imports
    return {}


def evaluate_node(
    node: ir.Node,
    inputs: list[Tensor | None],
    *,
    dtype: torch.dtype = torch.float64,
    opset_imports: Mapping[str, int] | None = None,
) -> list[Tensor]:
    """Evaluate one node.

    Args:
        node: the node; control flow is the :class:`Evaluator`'s.
        inputs: one tensor per node input, None where the input is absent.
        dtype: stands for every float.
        opset_imports: versions by domain; the node's own graph's by default.

    Raises:
        GraphError: the operator is unknown, random, or failed on these inputs.
    """
    opset = opset_of(node, opset_imports if opset_imports is not None else imports_of(node))
    if is_standard(node, "Constant"):
        tensor = held_tensor(node)
        if tensor is None:
            raise GraphError(f"Constant {node.name} holds no tensor value; expected a dense one")
        return [as_constant(tensor, dtype)]
    call, implementation = Call(node, opset, dtype), OPERATORS.get(kind_of(node))
    if may_misfit(node):
        said = misfit(node, opset, [None if item is None else tuple(item.shape) for item in inputs])
        if said:
            raise failed(node, inputs, ValueError(said))
    try:
        require_result(call, inputs)
    except OPERATOR_ERRORS as error:
        raise failed(node, inputs, error) from error
    if implementation is not None:
        try:
            result = implementation(call, inputs)
            return [result] if isinstance(result, Tensor) else list(result)
        except NotImplementedError:
            pass  # a corner our table leaves to the reference implementation
        except OPERATOR_ERRORS as error:
            raise failed(node, inputs, error) from error
    session = reference_session(node, opset, dtype)
    try:
        return [promote(item, dtype) for item in run_reference(session, node, inputs)]
    except GraphError:
        raise
    except Exception as error:  # the reference implementation raises whatever numpy raises
        raise GraphError(f"operator {node.op_type} ({node.name}) failed: {error}") from error


def failed(node: ir.Node, inputs: Sequence[Tensor | None], error: Exception) -> GraphError:
    """Return the error of an operator that could not be evaluated."""
    shapes = [None if item is None else tuple(item.shape) for item in inputs]
    return GraphError(f"operator {node.op_type} ({node.name}) failed on inputs of shapes {shapes}: {error}")
