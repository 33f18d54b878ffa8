"""Products of 8 bits: whether this processor adds them exactly, and how onnxruntime is asked to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from normdeploy.files import words_in
from normdeploy.onnxfile import parsed, read_outline
from normdeploy.ort.machine import Machine, this_machine

EXACT_PRODUCTS = ("session.x64quantprecision", "1")
"""The session entry with which onnxruntime adds products of 8 bits exactly on every processor.

Without it, kernels for x64 without dot-product instructions (VNNI and the like) add pairs of uint8 and int8 in 16 bits,
which saturate: 2 * 255 * 127 does not fit. With it, int8 weights are stored as uint8 from level "extended" on.
onnxruntime's documentation of quantization calls the fault U8S8 saturation.
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


def product_entries(model: str | os.PathLike[str] | bytes) -> dict[str, str]:
    """Return the session entries with which a model's products of 8 bits are exact here; none where they are anyway.

    None either where onnxruntime cannot be asked, see :func:`can_be_asked`.

    Args:
        model: the ONNX file, or the bytes of one.
    """
    if not saturates(this_machine()):
        return {}
    word = _DEQUANTIZE.encode()
    if not (word in model if isinstance(model, bytes) else words_in(model, [word])):
        return dict([EXACT_PRODUCTS])
    proto = parsed(model) if isinstance(model, bytes) else read_outline(model).proto
    return dict([EXACT_PRODUCTS]) if can_be_asked(proto) else {}


def can_be_asked(model: Any) -> bool:
    """Tell whether the onnxruntime in use loads and runs a model that it is asked for exact products of.

    It gives a DequantizeLinear of a weight a zero point of its own: one for all where there is none, which its kernel
    refuses beside steps per channel (and 1.29 never survives); and it fails where two weights read one zero point, or
    would once what is computed from constants is.

    Args:
        model: as `normdeploy.onnxfile.schema` describes it.
    """
    nodes = list(_nodes(model))
    graphs = [model.graph, *(body for node in nodes for body in _bodies(node))]
    ranks = {tensor.name: len(tensor.dims) for graph in graphs for tensor in graph.initializer}
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


def _nodes(model: Any) -> Iterator[Any]:
    waiting = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for body in _bodies(node) for inner in body.node]


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
