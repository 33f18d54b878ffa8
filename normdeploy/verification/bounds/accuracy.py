"""How accurately a float32 kernel computes each operator: what moves, what rounds, what is accurate only absolutely."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from normdeploy.array_types import Shape
from normdeploy.graph.bodies import BODIES
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.operators.sequences import SEQUENCES
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.sides.function_accuracy import FUNCTIONS

GATES: dict[str, tuple[float, float]] = {
    **{name.lower(): found for name, found in FUNCTIONS.items()},
    "sigmoid": (7.0, 1.0),
    "tanh": (8.0, 0.0),
}
"""As :data:`FUNCTIONS`, of the functions inside recurrent operators, which have kernels of their own: a closed reset
gate is 4 u below zero, always, a saturated Tanh 8 u below 1. Such a gate multiplies a state of any size, which may be
an input."""


def rounds(node: ir.Node) -> bool:
    """Tell whether a node's float32 result is rounded at all: not where it moves, selects or compares values."""
    if is_standard(node, "Cast"):
        to = node.attributes.get_int("to", 1)
        return to in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return not (has(node, Trait.EXACT) or is_standard(node, "Constant", "CastLike", *BODIES, *SEQUENCES))


def reduction_length(node: ir.Node, known: Mapping[str, Shape], result: Shape) -> int:
    """Return k, the number of terms added up for one element of a node's result; 1 where nothing is added.

    Args:
        node: the node. known: shapes of values by name; constants have their own. result: shape of its first output.
    """
    shapes = [_shape(value, known) for value in node.inputs]
    first = shapes[0] if shapes else None
    kind = node.op_type
    size = math.prod(result)
    length = 1
    linear = linear_of(node)
    data, weight = (None, None) if linear is None else (shapes[linear.data], shapes[linear.weight])
    if linear is not None and weight:
        length = linear.terms(weight)
    elif linear is not None and data:
        length = data[linear.data_axis(len(data))]
    elif has(node, Trait.POOLS) and rounds(node) and "kernel_shape" in node.attributes:
        length = math.prod(node.attributes.get_ints("kernel_shape", (1,)))
    elif kind in ("Softmax", "LogSoftmax") and first:
        length = first[node.attributes.get_int("axis", -1)]
    elif kind == "Einsum" and first:
        length = max(first)
    elif first and size and math.prod(first) > size:
        length = math.prod(first) // size  # reductions and global pools
    elif first and kind.endswith("Normalization") and kind != "BatchNormalization":
        length = math.prod(first[1:])
    return max(1, length)


def _shape(value: ir.Value | None, known: Mapping[str, Shape]) -> Shape | None:
    if value is None or value.name in known or value.const_value is None:
        return None if value is None else known.get(str(value.name))
    return tuple(int(size) for size in value.const_value.shape.numpy())


def gate_weights(graph: ir.Graph) -> dict[ir.Value, float]:
    """Return how many roundings each weight of a recurrent operator stands for, by initializer.

    Its gates are sums inside the operator, where no noise reaches them: the j-th partial sum of k terms of size t is
    about sqrt(j) t, its rounding that times u. Added up these are as large as an error of sqrt(k / 2) u of every term,
    which a weight's own noise can stand for. (The result says nothing of it: a cell state of 1000 multiplies a gate.)

    Args:
        graph: whose recurrent operators; in bodies too.
    """
    found: dict[ir.Value, float] = {}
    for node in nodes_in(graph):
        linear = linear_of(node)
        if linear is None or linear.form is not Form.RECURRENT or len(node.inputs) < 3:
            continue
        queue = [value for value in node.inputs[1:4] if value is not None]
        sizes = [value.shape[-1] for value in queue[:2] if value.shape is not None]
        length = sum(size for size in sizes if isinstance(size, int)) or 2 * node.attributes.get_int("hidden_size", 1)
        for value in queue:
            producer = value.producer()
            if value.is_initializer():
                found[value] = max(found.get(value, 1.0), math.sqrt(length / 2))
            elif has(producer, Trait.MOVES | Trait.JOINS | Trait.CONVERTS):
                queue += [v for v in producer.inputs if v is not None and v not in queue]
    return found
