"""What onnxruntime's kernels are known to compute badly, so that a verdict can blame the runtime by name."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import nodes_in

_ONE_PASS = frozenset({"GroupNormalization"})
"""Operators whose variance onnxruntime's CPU provider takes as E[x^2] - E[x]^2, because it spells them out in others
(docs/norm-operators.md): where a group's mean is large beside its deviation nothing correct is left, or NaN."""

_AXIS, _AXIS_BEFORE, _SINCE = -2, 1, 20
"""The axis of a DFT that names none: the last but the one of real and imaginary parts; before operator set 20 the first
behind the batch."""

_WRITTEN_OVER = ((3, 1), (4, 2))
"""Operands of a BatchNormalization in training mode, each with the result that onnxruntime lets take its place, also
where it is a weight, unless the result is an output of the graph (docs/upstream/onnxruntime.md)."""


def known_kernels(graph: ir.Graph) -> str:
    """Return what is known of the runtime's kernels for a graph's operators and explains a wrong result; "" if none."""
    found = one_pass_variance(graph), overwritten_statistics(graph), coarse_transforms(graph)
    return "; ".join(text for text in found if text)


def coarse_transforms(graph: ir.Graph) -> str:
    """Return which Fourier transforms onnxruntime computes coarsely, and what avoids that; "" where none.

    Of a length that is no power of two it convolves with a chirp in float32 (Bluestein): 30 to 100 times torch's error.
    """
    axis = _AXIS if graph.opset_imports.get("", _SINCE) >= _SINCE else _AXIS_BEFORE
    nodes = [node for node in nodes_in(graph) if is_standard(node, "DFT") and not _of_a_power_of_two(node, axis)]
    if not nodes:
        return ""
    return (
        f"onnxruntime computes {_named(nodes)} 30 to 100 times less exactly than torch where the length is no power of "
        "two: the runtime is coarse there and the file right; transform lengths that are a power of two, or multiply "
        "by the matrix of the transform"
    )


def _of_a_power_of_two(node: ir.Node, default: int) -> bool:
    """Tell whether a transform's length is known, and a power of two; ``default`` is the axis that it need not name."""
    _, given, where = (*node.inputs, None, None)[:3]
    length: Any = _number(given)
    if given is None:
        axis = node.attributes.get_int("axis", default) if where is None else _number(where)
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        length = None if shape is None or axis is None else shape[axis]
    return isinstance(length, int) and length.bit_count() == 1


def _number(value: ir.Value | None) -> int | None:
    tensor = constant_tensor(value)
    return None if tensor is None else int(tensor.numpy().item())


def overwritten_statistics(graph: ir.Graph) -> str:
    """Return which norms let onnxruntime write over weights that something else reads, or go on from; "" where none."""
    nodes = [node for node in nodes_in(graph) if _writes_what_is_read(node)]
    if not nodes:
        return ""
    return (
        f"onnxruntime writes the running statistics of {_named(nodes)} over the weights that it reads them from, so "
        "that results depend on the calls before: the runtime is wrong there and the file right; export in evaluation "
        "mode, or make all three results of the norm outputs of the graph"
    )


def _writes_what_is_read(node: ir.Node) -> bool:
    if not is_standard(node, "BatchNormalization") or not node.attributes.get_int("training_mode", 0):
        return False
    for read, written in _WRITTEN_OVER:
        weight, result = node.inputs[read], node.outputs[written] if written < len(node.outputs) else None
        if weight is None or result is None or not weight.is_initializer() or result.is_graph_output():
            continue
        if len(weight.uses()) > 1 or weight.is_graph_output() or result.uses():
            return True
    return False


def _named(nodes: list[ir.Node]) -> str:
    named = ", ".join(f"{node.op_type} {node.name or node.outputs[0].name!r}" for node in nodes[:3])
    return f"{named} and {len(nodes) - 3} more" if len(nodes) > 3 else named


def one_pass_variance(graph: ir.Graph) -> str:
    """Return which norms of a graph a large mean ruins in onnxruntime, and what avoids that; "" where none."""
    nodes = [node for node in nodes_in(graph) if is_standard(node, *_ONE_PASS)]
    if not nodes:
        return ""
    return (
        f"onnxruntime has no kernel for {_named(nodes)} and takes its variance as E[x^2] - E[x]^2, of which nothing is "
        "left where a mean is large beside the deviation: the runtime is wrong there and the file right; write it as "
        "Reshape, InstanceNormalization, Reshape (normdeploy export and fold do), or keep such inputs away"
    )
