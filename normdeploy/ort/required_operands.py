"""Operands that onnxruntime's kernels read without looking whether they are there: nodes that lack them are refused.

The definitions of these operators call them optional, a session of such a file opens, and its first run ends the
process: com.microsoft's Attention without a bias and DFT with an absent axis that is written (as an empty name) read
past nothing (SIGSEGV), QLinearLeakyRelu and QLinearSigmoid without a zero point of the result abort; and but for Concat
no operator of any number of operands looks for an absent one among them. A LayerNormalization whose bias is written as
an empty name ends it sooner, when the extended optimizers see it (onnxruntime 1.31.1, CPU;
docs/upstream/onnxruntime.md). No caller can catch that, so the node is named before a session is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from normdeploy.errors import GraphError
from normdeploy.onnxfile.stored import STANDARD, with_bodies
from normdeploy.onnxfile.without_weights import read_operators

_MICROSOFT = "com.microsoft"
_READ = {
    "Attention": (2, "a bias", "give it one of zeros"),
    "QLinearLeakyRelu": (4, "a zero point of its result", "give it one of 0"),
    "QLinearSigmoid": (4, "a zero point of its result", "give it one of 0"),
}
"""Operators of com.microsoft: the operand's place, what it is, and what stands for it where it is absent."""

_ALL = frozenset({"Max", "Min", "Sum", "Mean", "Einsum"})
"""Standard operators of any number of operands; Concat looks for itself."""


def check_operands(path: str | os.PathLike[str]) -> None:
    """Refuse a file with an operator that lacks an operand which its kernel reads all the same.

    Args:
        path: the ONNX file.

    Raises:
        GraphError: it holds one; the message names the node, the operand and the remedy.
    """
    proto = read_operators(path)
    if proto is None:
        return  # onnxruntime tells what it is not, or reads it as of another format
    for graph in with_bodies(proto.graph, *proto.functions):
        for node in graph.node:
            require_operands(node.domain, node.op_type, node.input, node.name or node.output[0])


def require_operands(domain: str, kind: str, operands: Sequence[str | None], name: str) -> None:
    """Refuse an operator that lacks an operand which its kernel reads all the same.

    Args:
        domain, kind: which operator it is. operands: names of what it reads, nothing for absent ones. name: its own.

    Raises:
        GraphError: it does; the message names the operand and the remedy.
    """
    if domain == _MICROSOFT and kind in _READ:
        place, what, remedy = _READ[kind]
        lacks = len(operands) <= place or not operands[place]
    elif domain in STANDARD and kind == "DFT" and len(operands) > 2 and not operands[2]:
        lacks, what, remedy = True, "an axis", "leave its name out altogether, or give it"
    elif domain in STANDARD and kind == "LayerNormalization" and len(operands) > 2 and not operands[2]:
        lacks, what, remedy = True, "a bias", "leave its empty name out, or give it one of zeros"
    elif domain in STANDARD and kind in _ALL and not all(operands):
        lacks, what, remedy = True, "one of its operands", "leave its empty name out"
    else:
        return
    if lacks:
        raise GraphError(
            f"{kind} {name!r} lacks {what}, without which onnxruntime ends the process that runs the file; "
            f"expected {what}: {remedy}"
        )
