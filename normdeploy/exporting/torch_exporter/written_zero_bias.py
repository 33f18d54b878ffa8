"""The zero bias that torch's exporter writes for convolutions without one, taken out of the traced graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph.edit import take_out_unread
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.traits import Trait, has


def drop_written_zero_bias(graph: ir.Graph) -> int:
    """Drop the zero bias that the exporter writes for convolutions without one; return how many.

    It is Expand(0, ...) to a shape taken from the weight. For three-dimensional convolutions that shape is wrong
    (weight.shape[:1] and a 2), and no runtime takes it; for the others it is an expression in the place of nothing.

    Legality: the operand is an Expand of a constant zero (through a Cast), so it adds nothing whatever its shape.
    """
    dropped = 0
    for node in graph:
        linear = linear_of(node)
        if linear is None or linear.form not in (Form.CONVOLUTION, Form.TRANSPOSED) or linear.bias is None:
            continue
        bias = linear.value(linear.bias)
        if not _is_zero(bias):
            continue
        node.replace_input_with(linear.bias, None)
        if linear.bias + 1 == len(node.inputs):
            node.resize_inputs(linear.bias)
        take_out_unread([bias])
        dropped += 1
    return dropped


def _is_zero(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "Expand":
        return False
    value = producer.inputs[0]
    producer = None if value is None else value.producer()
    if producer is not None and has(producer, Trait.CONVERTS):
        value = producer.inputs[0]
    if value is None:
        return False
    constant = ir.convenience.get_const_tensor(value)
    return constant is not None and constant.size == 1 and bool(np.all(constant.numpy() == 0))
