"""Products of 8 bits: where onnxruntime makes them, whether it adds them exactly, and how it is asked to.

Two things are asked for: that products of integers are added exactly, and that floats stay floats which are multiplied
by weights that are stored in integers.
"""

from __future__ import annotations

import os
from typing import Any

from normdeploy.files import words_in
from normdeploy.onnxfile.named_bytes import Content
from normdeploy.onnxfile.outline import read_outline, session_source
from normdeploy.onnxfile.schema import parsed
from normdeploy.onnxfile.stored import with_bodies
from normdeploy.ort.machine import Machine, this_machine

EXACT_PRODUCTS = ("session.x64quantprecision", "1")
"""The session entry with which onnxruntime adds products of 8 bits exactly on every processor.

Without it, kernels for x64 without dot-product instructions (VNNI and the like) add pairs of uint8 and int8 in 16 bits,
which saturate: 2 * 255 * 127 does not fit. With it, int8 weights are stored as uint8 from level "extended" on.
onnxruntime's documentation of quantization calls the fault U8S8 saturation.
"""
WHOLE_OPERANDS = ("session.qdq_matmulnbits_accuracy_level", "1")
"""The session entry with which onnxruntime multiplies weights that are stored in integers by floats as they are.

Without it, its optimizers make a MatMulNBits of accuracy level 4 of a weight's DequantizeLinear and a MatMul or Gemm:
the other operand is rounded to 8 bits, and the result is off by some thousandths where the file says float32.
"""
_ADDS_ZERO_POINTS = (1, 30)
"""The first onnxruntime that survives being asked for exact products of int8 weights without a zero point.

1.28 and 1.29 read an input that is not there, which ends the process, also where all weights have one step.
"""
_DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def saturates(machine: Machine) -> bool:
    """Whether 8-bit kernels of ``machine`` can saturate.

    Processors without dot-product instructions multiply pairs of uint8 and int8 into a 16-bit sum: 2 * 255 * 127 does
    not fit, 2 * 255 * 64 does.
    """
    return not _DOT_PRODUCTS & set(machine.instructions)


def product_entries(model: str | os.PathLike[str] | Content, *, stored: bool | None = None) -> dict[str, str]:
    """Return the session entries with which a model's products are exact here; none where they are anyway.

    Products of 8 bits stay as they are where onnxruntime cannot be asked, see :func:`can_be_asked`.

    Args:
        model: the ONNX file, or the bytes of one. stored: whether it may hold a DequantizeLinear; looked for otherwise.
    """
    if stored is None:
        stored = bool(words_in(model, [_DEQUANTIZE.encode()]))
    found = dict([WHOLE_OPERANDS]) if stored else {}
    if saturates(this_machine()):
        proto = None if not stored else parsed(model) if isinstance(model, Content) else read_outline(model).proto
        if proto is None or can_be_asked(proto):
            found |= dict([EXACT_PRODUCTS])
    return found


def exact_session(path: str | os.PathLike[str]) -> tuple[str | bytes, dict[str, str]]:
    """Return what to open a session of a file from, and its configuration, with which its products are exact here."""
    source, entries = session_source(path)
    return source, entries | product_entries(path)


def can_be_asked(model: Any) -> bool:
    """Tell whether the onnxruntime in use loads and runs a model that it is asked for exact products of.

    It gives a DequantizeLinear of a weight a zero point of its own: one for all where there is none, which its kernel
    refuses beside steps per channel (and 1.29 never survives); and it fails where two weights read one zero point, or
    would once what is computed from constants is.

    Args:
        model: as `normdeploy.onnxfile.schema` describes it.
    """
    graphs = list(with_bodies(model.graph, *model.functions))
    nodes = [node for graph in graphs for node in graph.node]
    ranks = {tensor.name: len(tensor.dims) for graph in graphs for tensor in getattr(graph, "initializer", ())}
    quantized = {name for node in nodes if node.op_type == _QUANTIZE for name in node.output}
    read, adds = set[str](), _version() >= _ADDS_ZERO_POINTS
    for node in nodes:
        if node.op_type != _DEQUANTIZE or (node.input and node.input[0] in quantized):  # of an activation
            continue
        _, step, zero = (*node.input, "", "", "")[:3]
        if zero in read or not (zero in ranks if zero else adds and ranks.get(step) == 0):
            return False
        read |= {zero} - {""}
    return True


def _version() -> tuple[int, ...]:
    import onnxruntime

    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
