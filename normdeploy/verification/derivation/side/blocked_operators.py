"""Files whose values lie in blocks of channels, written with plain ones, so that each of their operators has its law.

onnxruntime's optimization level "all" writes them (:mod:`normdeploy.graph.operators.contrib.nchwc`). A graph is written
anew as a whole or not at all: a value lies in blocks for all that read it. Channels that fill blocks up are left out
(:mod:`.filled_channels`). What is left as it is: what is enlarged within blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir
import torch

from normdeploy.array_types import Array
from normdeploy.graph import constant_tensor, tensor64
from normdeploy.graph.edit import put_constant
from normdeploy.graph.operators.contrib import BLOCKED_DOMAIN
from normdeploy.graph.operators.contrib.nchwc import plain_kernel
from normdeploy.verification.derivation.side.filled_channels import FilledChannels
from normdeploy.verification.derivation.side.joined_operators import fused_conv, knows_activation
from normdeploy.verification.derivation.side.spelled_operator import Writer


def has_blocks(model: ir.Model) -> bool:
    """Tell whether values of a model's graph lie in blocks, and can be written plainly."""
    return _channels(model) is not None


def write_without_blocks(model: ir.Model) -> set[str]:
    """Write what lies in blocks plainly, in place; return the names of the values that came in between.

    Args:
        model: a copy of its own.
    """
    made: set[str] = set()
    channels = _channels(model)
    if channels is None:
        return made
    for node in model.graph:
        for value in node.outputs:
            if channels.is_filled(value):
                value.shape = None  # it counts the filling
    counts = {node: (channels.of(node.inputs[0]), channels.of(node.outputs[0])) for node in _blocked_nodes(model)}
    for node, (read, results) in counts.items():
        writer = Writer(model, node)
        if node.op_type == "Conv":
            _conv(writer, read, results)
        else:
            _WRITTEN[node.op_type](writer)
        made |= writer.put()
    return made


def _blocked_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == BLOCKED_DOMAIN]


def _channels(model: ir.Model) -> FilledChannels | None:
    """Return the channels of the values in blocks; None where there are none, or they cannot be written plainly."""
    nodes = _blocked_nodes(model)
    if not nodes or not all((node.op_type == "Conv" or node.op_type in _WRITTEN) and _fits(node) for node in nodes):
        return None
    found = FilledChannels(model, _kernel)
    return found if found.known else None


def _fits(node: ir.Node) -> bool:
    """Tell whether all that is needed of an operator is known."""
    if node.op_type != "Conv":
        return True
    name, given = node.attributes.get_string("activation", ""), node.attributes.get_floats("activation_params", [])
    return constant_tensor(node.inputs[1]) is not None and knows_activation(name or "", len(given or ()))


def _kernel(node: ir.Node) -> Array:
    """Return a convolution's kernel as [O, I, ...]."""
    kernel = constant_tensor(node.inputs[1])
    assert kernel is not None
    return plain_kernel(torch.from_numpy(tensor64(kernel).copy())).numpy()


def _conv(writer: Writer, read: int | None, results: int | None) -> None:
    """Write a convolution with as many channels as are the network's; what it reads may not lie in blocks."""
    node, graph = writer.node, writer.model.graph
    kernel, bias = constant_tensor(node.inputs[1]), constant_tensor(writer.read(2))
    assert kernel is not None
    numbers = _kernel(node)
    grouped = node.attributes.get_int("group", 1) > 1
    numbers = numbers[:results] if grouped else numbers[:results, :read]
    added = None
    if bias is not None and results is not None and bias.size > results:
        added = put_constant(graph, tensor64(bias)[:results], f"{bias.name}.plain", bias.dtype)
    fused_conv(writer, put_constant(graph, numbers, f"{kernel.name}.plain", kernel.dtype), added)


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
    "GlobalAveragePool": _alike,
    "GlobalMaxPool": _alike,
    "MaxPool": _alike,
    "ReorderInput": _reorder((0, 3, 1, 2)),
    "ReorderOutput": _reorder((0, 2, 3, 1)),
}
