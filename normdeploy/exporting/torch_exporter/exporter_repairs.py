"""What torch's exporter writes wrong, put right on the traced graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

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


def forget_times(model: ir.Model) -> int:
    """Take back the sizes that the exporter gives to what recurrent layers compute; return of how many values.

    torch's shape propagation runs these layers over the example's time steps: their results, and all that is computed
    of them, are declared as long as the example where the input's time is dynamic. What follows from the inputs is
    inferred anew, the rest stays open.
    """
    graph = model.graph
    declared: dict[ir.Value, ir.Shape | None] = {}
    for node in graph:
        if _recurs(node) or any(value in declared for value in node.inputs):
            declared |= {value: value.shape for value in node.outputs}
    if not declared:
        return 0
    for value in declared:
        value.shape = None
    infer = common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    infer(model)
    unsure: set[ir.Value] = set()
    for node in graph:
        if _recurs(node) and node.inputs[0] is not None and node.inputs[0].shape is None:
            infer(model)  # the exporter declares nothing of what it computes for a layer itself
        if any(value in unsure for value in node.inputs) or (_recurs(node) and not _knows_its_time(node)):
            unsure.update(node.outputs)
        else:
            for value in node.outputs:
                value.shape = declared.get(value, value.shape)  # it ran over as many steps as there always are
    infer(model)
    for value in unsure:
        shape = declared[value]
        if value.shape is None and shape is not None:
            value.shape = ir.Shape([None] * len(shape))
    return len(unsure)


def _knows_its_time(node: ir.Node) -> bool:
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    axis = 1 if node.attributes.get_int("layout", 0) else 0
    return shape is not None and isinstance(shape[axis], int)


def _recurs(node: ir.Node) -> bool:
    linear = linear_of(node)
    return linear is not None and linear.form is Form.RECURRENT
