"""What torch's exporter writes wrong, put right on the traced graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def drop_written_zero_bias(graph: ir.Graph) -> int:
    """Drop the zero bias that the exporter writes for convolutions without one; return how many.

    It is Expand(0, ...) to a shape taken from the weight. For three-dimensional convolutions that shape is wrong
    (weight.shape[:1] and a 2), and no runtime takes it; for the others it is an expression in the place of nothing.

    Legality: the operand is an Expand of a constant zero (through a Cast), so it adds nothing whatever its shape.
    """
    dropped = 0
    for node in graph:
        if node.op_type not in ("Conv", "ConvTranspose") or len(node.inputs) < 3 or not _is_zero(node.inputs[2]):
            continue
        bias = node.inputs[2]
        node.replace_input_with(2, None)
        node.resize_inputs(2)
        _remove_unread(bias)
        dropped += 1
    return dropped


def _is_zero(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "Expand":
        return False
    value = producer.inputs[0]
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type in ("Cast", "CastLike"):
        value = producer.inputs[0]
    if value is None:
        return False
    constant = ir.convenience.get_const_tensor(value)
    return constant is not None and constant.size == 1 and bool(np.all(constant.numpy() == 0))


def _remove_unread(value: ir.Value | None) -> None:
    node = None if value is None else value.producer()
    if node is None or node.graph is None or any(out.uses() or out.is_graph_output() for out in node.outputs):
        return
    inputs = list(node.inputs)
    node.graph.remove(node, safe=True)
    for operand in inputs:
        _remove_unread(operand)
