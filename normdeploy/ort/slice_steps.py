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
from normdeploy.onnxfile.stored import STANDARD, graphs

_LOWEST = -(1 << 31)
_STEPS = 4  # the place among a Slice's inputs, from operator set 10 on


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

    from normdeploy.onnxfile.outline import parse_into
    from normdeploy.onnxfile.small_constants import lowest_numbers

    proto = onnx.ModelProto()
    file, _ = parse_into(proto, path)
    wanted = {node.input[_STEPS]: node for graph in graphs(proto) for node in graph.node if _has_steps(node)}
    for name, step in lowest_numbers(file, proto, wanted).items():
        if step <= _LOWEST:
            node = wanted[name]
            raise GraphError(
                f"{file}: Slice {node.name or node.output[0]!r} has a step of {step}, which ends the process in "
                f"OpenVINO; expected more than {_LOWEST}: write a step that is no larger than the axis, or choose "
                "another provider"
            )


def _has_steps(node: Any) -> bool:
    return node.op_type == "Slice" and node.domain in STANDARD and len(node.input) > _STEPS
