"""Steps of a Slice that end the process in OpenVINO: refused by the node's name before it reads the file.

OpenVINO cuts steps to 32 bits, where the lowest number has no positive counterpart: taking its size divides out of
range (SIGFPE), in its own runtime and in onnxruntime's provider alike. onnxruntime's own kernels survive such steps.

Only steps that stand in the file are seen; one that is computed, or given to a function, is not (SECURITY.md).
"""

from __future__ import annotations

import os
from typing import Any

from normdeploy.errors import GraphError
from normdeploy.files import words_in
from normdeploy.onnxfile.stored import STANDARD, graphs, tensors

_LOWEST = -(1 << 31)
_STEPS = 4  # the place among a Slice's inputs, from operator set 10 on
_SMALL = 4096  # bytes: no Slice has more steps than a tensor has axes


def check_slice_steps(path: str | os.PathLike[str]) -> None:
    """Refuse a Slice with a constant step of -2**31 or less.

    Args:
        path: the ONNX file.

    Raises:
        GraphError: it holds one; the message names the node and the step.
    """
    if not words_in(path, [b"Slice"]):
        return
    import onnx

    from normdeploy.onnxfile.data_places import find_places, put_inside
    from normdeploy.onnxfile.outline import parse_into

    proto = onnx.ModelProto()
    file, _ = parse_into(proto, path)
    wanted = {node.input[_STEPS]: node for graph in graphs(proto) for node in graph.node if _has_steps(node)}
    if not wanted:
        return
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors(proto)):
        for tensor, place in find_places(file, proto):
            if place.length <= _SMALL:
                put_inside(tensor, place)
    for name, step in _constants(proto, set(wanted)):
        if step <= _LOWEST:
            node = wanted[name]
            raise GraphError(
                f"{file}: Slice {node.name or node.output[0]!r} has a step of {step}, which ends the process in "
                f"OpenVINO; expected more than {_LOWEST}: write a step that is no larger than the axis, or choose "
                "another provider"
            )


def _has_steps(node: Any) -> bool:
    return node.op_type == "Slice" and node.domain in STANDARD and len(node.input) > _STEPS


def _constants(proto: Any, names: set[str]) -> list[tuple[str, int]]:
    """Return the lowest number of every constant of these names; one name may stand in several bodies."""
    from onnx import TensorProto, numpy_helper

    found: list[tuple[str, int]] = []
    for graph in graphs(proto):
        held = [(tensor.name, tensor) for tensor in getattr(graph, "initializer", ())]
        for node in graph.node:
            if node.op_type != "Constant" or node.domain not in STANDARD:
                continue
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    held.append((node.output[0], attribute.t))
                elif node.output[0] in names and (attribute.ints or attribute.HasField("i")):
                    found.append((node.output[0], min(attribute.ints or [attribute.i])))
        for name, tensor in held:
            if name in names and tensor.data_type in (TensorProto.INT32, TensorProto.INT64):
                numbers = numpy_helper.to_array(tensor).reshape(-1)
                found += [(name, int(numbers.min()))] if numbers.size else []
    return found
