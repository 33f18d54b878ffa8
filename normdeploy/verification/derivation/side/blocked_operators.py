"""Files whose values lie in blocks of channels, written with plain ones, so that each of their operators has its law.

onnxruntime's optimization level "all" writes them (:mod:`normdeploy.graph.operators.contrib.nchwc`). A graph is written
anew as a whole or not at all: a value lies in blocks for all that read it. What is left as it is: channels that fill no
whole blocks, as far as a file says that, and what is enlarged within blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir
import torch

from normdeploy.graph import constant_tensor, tensor64
from normdeploy.graph.edit import put_constant
from normdeploy.graph.operators.contrib import BLOCKED_DOMAIN
from normdeploy.graph.operators.contrib.nchwc import block_size, plain_kernel
from normdeploy.verification.derivation.side.joined_operators import fused_conv, knows_activation
from normdeploy.verification.derivation.side.spelled_operator import Writer


def has_blocks(model: ir.Model) -> bool:
    """Tell whether values of a model's graph lie in blocks, and can be written plainly."""
    nodes = [node for node in model.graph if node.domain == BLOCKED_DOMAIN]
    return bool(nodes) and all(node.op_type in _WRITTEN and _fits(node) for node in nodes)


def write_without_blocks(model: ir.Model) -> set[str]:
    """Write what lies in blocks plainly, in place; return the names of the values that came in between.

    Args:
        model: a copy of its own.
    """
    made: set[str] = set()
    if not has_blocks(model):
        return made
    for node in [node for node in model.graph if node.domain == BLOCKED_DOMAIN]:
        writer = Writer(model, node)
        _WRITTEN[node.op_type](writer)
        made |= writer.put()
    return made


def _fits(node: ir.Node) -> bool:
    """Tell whether an operator's channels fill its blocks, and all that is needed of it is known."""
    if node.op_type == "Conv":
        name, given = node.attributes.get_string("activation", ""), node.attributes.get_floats("activation_params", [])
        return constant_tensor(node.inputs[1]) is not None and knows_activation(name or "", len(given or ()))
    if node.op_type == "ReorderOutput":
        return node.attributes.get_int("channels", 1) % block_size() == 0
    if node.op_type == "ReorderInput":
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        channels = None if shape is None else shape[-1 if node.attributes.get_int("channels_last", 0) else 1]
        return isinstance(channels, int) and channels % block_size() == 0
    return True


def _conv(writer: Writer) -> None:
    kernel = constant_tensor(writer.node.inputs[1])
    assert kernel is not None
    numbers = plain_kernel(torch.from_numpy(tensor64(kernel).copy())).numpy()
    fused_conv(writer, put_constant(writer.model.graph, numbers, f"{kernel.name}.plain", kernel.dtype))


def _reorder(perm: tuple[int, ...]) -> Callable[[Writer], None]:
    """Return what writes an operator that only reorders memory, and moves the channels as ``perm`` if that is asked."""

    def write(writer: Writer) -> None:
        if writer.node.attributes.get_int("channels_last", 0):
            writer.add("Transpose", writer.read(0), perm=perm)
        else:
            writer.add("Identity", writer.read(0))

    return write


def _alike(writer: Writer) -> None:
    attributes = {name: a.value for name, a in writer.node.attributes.items()}
    writer.add(writer.node.op_type, writer.read(0), **attributes)


_WRITTEN: Mapping[str, Callable[[Writer], None]] = {
    "AveragePool": _alike,
    "Conv": _conv,
    "GlobalAveragePool": _alike,
    "GlobalMaxPool": _alike,
    "MaxPool": _alike,
    "ReorderInput": _reorder((0, 3, 1, 2)),
    "ReorderOutput": _reorder((0, 2, 3, 1)),
}
