"""Operands that onnxruntime's kernels read without looking whether they are there: files that lack them are refused.

The definitions of these operators call them optional, a session of such a file opens, and its first run ends the
process: com.microsoft's Attention without a bias reads past nothing (SIGSEGV), QLinearLeakyRelu and QLinearSigmoid
without a zero point of the result abort (onnxruntime 1.31.1, CPU; docs/upstream/onnxruntime.md). No caller can catch
that, so the node is named before the file is opened.
"""

from __future__ import annotations

import os
from typing import Any

from normdeploy.errors import GraphError
from normdeploy.files import words_in
from normdeploy.onnxfile import parsed, read_outline
from normdeploy.onnxfile.stored import with_bodies

_DOMAIN = "com.microsoft"
_READ = {
    "Attention": (2, "a bias", "give it one of zeros"),
    "QLinearLeakyRelu": (4, "a zero point of its result", "give it one of 0"),
    "QLinearSigmoid": (4, "a zero point of its result", "give it one of 0"),
}
"""By operator: the operand's place, what it is, and what stands for it where it is absent."""


def check_operands(model: str | os.PathLike[str] | bytes) -> None:
    """Refuse a model in which an operator lacks an operand that its kernel reads all the same.

    Args:
        model: the ONNX file, or the bytes of one.

    Raises:
        GraphError: it holds one; the message names the node, the operand and the remedy.
    """
    word = _DOMAIN.encode()
    if not (word in model if isinstance(model, bytes) else words_in(model, [word])):
        return
    proto = parsed(model) if isinstance(model, bytes) else read_outline(model).proto
    for graph in with_bodies(proto.graph, *proto.functions):
        for node in graph.node:
            if node.domain == _DOMAIN and node.op_type in _READ:
                _check(node)


def _check(node: Any) -> None:
    place, what, remedy = _READ[node.op_type]
    if len(node.input) <= place or not node.input[place]:
        raise GraphError(
            f"{node.op_type} {node.name or node.output[0]!r} lacks {what}, without which onnxruntime ends the process "
            f"that runs the file; expected {what}: {remedy}"
        )
