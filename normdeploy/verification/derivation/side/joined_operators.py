"""Operators of onnxruntime that are several of ONNX's own in one, written as these, so that each of them has its law.

onnxruntime's optimizers join a product with the factor behind it, a sum with the norm or the activation behind it, a
convolution with its activation. The meaning is that of :mod:`normdeploy.graph.operators.contrib`; the types and shapes
of what stands between are those of the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from normdeploy.graph.operators.contrib.dense import PARAMETERS, filled_up, parameters_of
from normdeploy.graph.traits import MICROSOFT, is_standard, kind_of
from normdeploy.verification.derivation.side.spelled_operator import Spelling, Writer
from normdeploy.verification.derivation.side.written_quantizers import QUANTIZED_SPELLINGS

_GELU = 20
"""The first operator set that has Gelu: it is spelled out before."""


def write_out(model: ir.Model) -> set[str]:
    """Write joined operators of a model's graph as what they join, in place.

    Args:
        model: a copy of its own.

    Returns:
        the names of the values that came in between.
    """
    made: set[str] = set()
    for node in list(model.graph):
        spelling = _spelling_of(node)
        if spelling is None:
            continue
        writer = Writer(model, node)
        if spelling(writer):
            made |= writer.put()
    return made


def written_out(model: ir.Model) -> ir.Model:
    """Return a model whose joined operators are written as what they join; itself where it has none."""
    if not has_joined(model):
        return model
    copy = model.clone()
    write_out(copy)
    return copy


def has_joined(model: ir.Model) -> bool:
    """Tell whether an operator of a model's graph may be written out."""
    return any(_spelling_of(node) is not None for node in model.graph)


def _spelling_of(node: ir.Node) -> Spelling | None:
    """Return how an operator is written out; of ONNX's own domain onnxruntime has one more than ONNX."""
    own = node.domain == MICROSOFT or is_standard(node, "SimplifiedLayerNormalization")
    return QUANTIZED_SPELLINGS.get(kind_of(node)) or (_SPELLINGS.get(node.op_type) if own else None)


def _fused_matmul(writer: Writer) -> bool:
    a, b = (writer.turned(writer.read(place), side) for place, side in enumerate("AB"))
    if a is None or b is None:
        return False
    product = writer.add("MatMul", a, b)
    alpha = writer.node.attributes.get_float("alpha", 1.0)
    if alpha != 1:
        writer.add("Mul", product, writer.number(alpha))
    return True


def _summed(writer: Writer, first: ir.Value | None, *others: ir.Value | None) -> ir.Value | None:
    for other in others:
        first = first if other is None else writer.add("Add", first, other)
    return first


def _gelu(writer: Writer) -> bool:
    x = _summed(writer, writer.read(0), writer.read(1))
    if x is None:
        return False
    if writer.opset >= _GELU:
        writer.add("Gelu", x)
        return True
    inner = writer.add("Erf", writer.add("Div", x, writer.number(math.sqrt(2))))
    product = writer.add("Mul", x, writer.add("Add", inner, writer.number(1)))
    writer.add("Mul", product, writer.number(0.5))
    return True


def _fast_gelu(writer: Writer) -> bool:
    x = _summed(writer, writer.read(0), writer.read(1))
    if x is None:
        return False
    if writer.opset >= _GELU:
        writer.add("Gelu", x, approximate="tanh")
        return True
    cubed = writer.add("Mul", writer.add("Pow", x, writer.number(3)), writer.number(0.044715))
    scaled = writer.add("Mul", writer.add("Add", x, cubed), writer.number(math.sqrt(2 / math.pi)))
    inner = writer.add("Add", writer.add("Tanh", scaled), writer.number(1))
    writer.add("Mul", writer.add("Mul", x, writer.number(0.5)), inner)
    return True


def _quick_gelu(writer: Writer) -> bool:
    x, alpha = writer.read(0), writer.node.attributes.get_float("alpha", 1.702)
    scaled = x if alpha == 1 else writer.add("Mul", x, writer.number(alpha))
    writer.add("Mul", x, writer.add("Sigmoid", scaled))
    return True


def _skip_layer_norm(writer: Writer) -> bool:
    if writer.asks(1, 2):
        return False
    total = _skipped(writer, writer.read(4))
    return _norm(writer, total, "LayerNormalization", [writer.read(2), writer.read(3)])


def _skip_rms_norm(writer: Writer) -> bool:
    if writer.asks(1, 2):
        return False
    total = _skipped(writer, writer.read(3))
    return _norm(writer, total, "RMSNormalization", [writer.read(2)])


def _skipped(writer: Writer, bias: ir.Value | None) -> ir.Value | None:
    """Write the sum in front of a norm: the bias is that of the product, whichever of the two operands it is."""
    first, second = writer.read(0), writer.read(1)
    maker = None if second is None else second.producer()
    if maker is not None and is_standard(maker, "MatMul", "Gemm"):
        first, second = second, first
    return _summed(writer, first, bias, second)


def _norm(writer: Writer, total: ir.Value | None, op_type: str, scales: Sequence[ir.Value | None]) -> bool:
    if total is None:
        return False
    writer.shown[3] = total
    epsilon = writer.node.attributes.get_float("epsilon", 1e-12)
    writer.add(op_type, total, *(scale for scale in scales if scale is not None), axis=-1, epsilon=epsilon)
    return True


def _rms_norm(writer: Writer) -> bool:
    if writer.asks(1):
        return False
    attributes = writer.node.attributes
    axis, epsilon = attributes.get_int("axis", -1), attributes.get_float("epsilon", 1e-5)
    writer.add("RMSNormalization", writer.read(0), writer.read(1), axis=axis, epsilon=epsilon)
    return True


def fused_conv(writer: Writer, kernel: ir.Value | None = None, added: ir.Value | None = None) -> bool:
    """Write a convolution with what is added to it and its activation; tell whether that is known.

    Args:
        kernel, added: in place of kernel and bias that are read.
    """
    attributes = writer.node.attributes
    own = {name: a.value for name, a in attributes.items() if not name.startswith("activation")}
    bias = added or writer.read(2)
    y = writer.add("Conv", writer.read(0), kernel or writer.read(1), *([] if bias is None else [bias]), **own)
    y = y if writer.read(3) is None else writer.add("Add", y, writer.read(3))
    return _activated(writer, y, [*attributes.get_floats("activation_params", [])])


def _fused_gemm(writer: Writer) -> bool:
    attributes = writer.node.attributes
    own = {name: a.value for name, a in attributes.items() if not name.startswith("activation")}
    bias = writer.read(2)
    y = writer.add("Gemm", writer.read(0), writer.read(1), *([] if bias is None else [bias]), **own)
    return _activated(writer, y, parameters_of(attributes.get_float, attributes.get_string("activation", "") or ""))


def knows_activation(name: str, parameters: int) -> bool:
    """Tell whether an activation that an operator holds, "" for none, can be written with so many parameters."""
    return not name or name in PARAMETERS or (name == "Clip" and parameters == 2)


def _activated(writer: Writer, y: ir.Value, parameters: Sequence[float]) -> bool:
    name = writer.node.attributes.get_string("activation", "") or ""
    if name == "Clip" and len(parameters) == 2:
        writer.add("Clip", y, *map(writer.number, parameters))
        return True
    if not knows_activation(name, len(parameters)):
        return False
    if name:
        numbers = filled_up(name, parameters)
        writer.add(name, y, **{key: number for (key, _), number in zip(PARAMETERS[name], numbers, strict=False)})
    return True


_SPELLINGS: Mapping[str, Spelling] = {
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "FusedConv": fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _rms_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
