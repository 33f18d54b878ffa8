"""Operators on integers with steps, written as the operator on real numbers between quantizers that each of them is.

onnxruntime's optimizers make QLinearConv of DequantizeLinear, Conv and QuantizeLinear, and likewise of a dozen others.
The meaning is that of :mod:`normdeploy.graph.operators.contrib.qlinear`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import put_constant
from normdeploy.graph.traits import MICROSOFT
from normdeploy.verification.derivation.side.spelled_operator import Spelling, Writer

_ONE_AXIS, _AXES_AS_INPUT = 13, 18
"""The first operator sets whose Softmax looks at one axis, and whose ReduceMean reads its axes."""

_STEPS = (1, 4)
"""Where the steps of both operands of a convolution or a product stand."""


def _real(writer: Writer, place: int, *, axis: int | None = None) -> ir.Value | None:
    """Write what stored integers stand for, given the place of the operand, its step and its zero point in a row."""
    stored, step, zero = (writer.read(place + k) for k in range(3))
    stored = _in_front(writer, stored) if place == 0 else stored
    if stored is None or step is None:
        return None
    operands = [stored, step] if zero is None else [stored, step, zero]
    if axis is None and not _is_one(step):
        return None
    made = writer.add("DequantizeLinear", *operands, **({} if axis is None or _is_one(step) else {"axis": axis}))
    made.shape, made.type = stored.shape, ir.TensorType(ir.DataType.FLOAT)
    return made


def _stored(writer: Writer, y: ir.Value, place: int) -> bool:
    """Write how a result is stored, given the place of its step and its zero point behind it."""
    step, zero = writer.read(place), writer.read(place + 1)
    if step is None or zero is None or not _is_one(step):
        return False
    made = writer.add("QuantizeLinear", y, step, zero)
    if not _has_channels_last(writer):
        return True
    rank = _rank(writer)
    if rank is None:
        return False
    made.shape = None
    writer.add("Transpose", made, perm=[0, *range(2, rank), 1])
    return True


def _rank(writer: Writer) -> int | None:
    """Return how many axes what is convolved or pooled has."""
    kernel = writer.node.attributes.get_ints("kernel_shape", None)
    if kernel is not None:
        return 2 + len(kernel)
    shapes = [None if value is None else value.shape for value in (writer.read(0), writer.read(3))]
    return next((len(shape) for shape in shapes if shape is not None and len(shape) > 1), None)


def _has_channels_last(writer: Writer) -> bool:
    return bool(writer.node.attributes.get_int("channels_last", False))


def _in_front(writer: Writer, stored: ir.Value | None) -> ir.Value | None:
    """Write how channels come in front, where the operator has them last; None where the rank is not known."""
    if stored is None or not _has_channels_last(writer):
        return stored
    rank = _rank(writer)
    if rank is None:
        return None
    made = writer.add("Transpose", stored, perm=[0, rank - 1, *range(1, rank - 1)])
    made.shape, made.type = None, stored.type
    return made


def _computed(writer: Writer, op_type: str, *operands: ir.Value | None, **attributes: object) -> ir.Value:
    made = writer.add(op_type, *operands, **attributes)
    made.type = ir.TensorType(ir.DataType.FLOAT)
    return made


def _is_one(step: ir.Value) -> bool:
    """Tell whether a step is one number."""
    tensor = constant_tensor(step)
    return tensor is not None and tensor.size == 1


def _own(writer: Writer, *without: str) -> dict[str, object]:
    return {name: a.value for name, a in writer.node.attributes.items() if name not in without}


def _binary(op_type: str, writer: Writer) -> bool:
    a, b = _real(writer, 0), _real(writer, 3)
    return a is not None and b is not None and _stored(writer, _computed(writer, op_type, a, b), 6)


def _unary(op_type: str, writer: Writer) -> bool:
    x = _real(writer, 0)
    return x is not None and _stored(writer, _computed(writer, op_type, x, **_own(writer, "opset", "channels_last")), 3)


def _softmax(writer: Writer) -> bool:
    meant = writer.node.attributes["opset"].as_int()
    return (meant < _ONE_AXIS) == (writer.opset < _ONE_AXIS) and _unary("Softmax", writer)


def _mean(writer: Writer) -> bool:
    x, axes = _real(writer, 0), writer.node.attributes.get_ints("axes", None)
    if x is None:
        return False
    given: list[ir.Value] = []
    attributes = _own(writer)
    if axes is not None and writer.opset >= _AXES_AS_INPUT:
        del attributes["axes"]
        name = f"{writer.node.outputs[0].name}.axes"
        given = [put_constant(writer.model.graph, np.asarray(axes, np.int64), name, ir.DataType.INT64)]
    return _stored(writer, _computed(writer, "ReduceMean", x, *given, **attributes), 3)


def _concat(writer: Writer) -> bool:
    parts = [_real(writer, place) for place in range(2, len(writer.node.inputs), 3)]
    if any(part is None for part in parts):
        return False
    return _stored(writer, _computed(writer, "Concat", *parts, **_own(writer)), 0)


def _where(writer: Writer) -> bool:
    x, y = _real(writer, 1), _real(writer, 4)
    if x is None or y is None:
        return False
    return _stored(writer, _computed(writer, "Where", writer.read(0), x, y), 7)


def _bias(writer: Writer, place: int, *, factor: float = 1.0) -> ir.Value | None:
    """Write a bias of integers, which stand for multiples of the product of both operands' steps."""
    bias, constants = writer.read(place), [constant_tensor(writer.read(step)) for step in _STEPS]
    if bias is None or any(tensor is None for tensor in constants):
        return None
    a, b = (np.asarray(tensor.numpy(), np.float32) for tensor in constants if tensor is not None)
    step = np.asarray(np.float32(factor) * a.reshape(()) * b.reshape(-1), np.float32)
    step = step.reshape(()) if step.size == 1 else step
    name = f"{writer.node.outputs[0].name}.bias_step"
    made = writer.add(
        "DequantizeLinear", bias, put_constant(writer.model.graph, step, name, ir.DataType.FLOAT),
        **({} if step.ndim == 0 else {"axis": 0}),
    )  # fmt: skip
    made.shape, made.type = bias.shape, ir.TensorType(ir.DataType.FLOAT)
    return made


def _conv(writer: Writer) -> bool:
    x, w = _real(writer, 0), _real(writer, 3, axis=0)
    if x is None or w is None:
        return False
    operands = [x, w]
    if writer.read(8) is not None:
        bias = _bias(writer, 8)
        if bias is None:
            return False
        operands.append(bias)
    return _stored(writer, _computed(writer, "Conv", *operands, **_own(writer, "channels_last")), 6)


def _matmul(writer: Writer) -> bool:
    a, weight = _real(writer, 0), writer.read(3)
    rank = None if weight is None or weight.shape is None else len(weight.shape)
    b = _real(writer, 3, axis=None if rank is None else rank - 1)
    return a is not None and b is not None and _stored(writer, _computed(writer, "MatMul", a, b), 6)


def _gemm(writer: Writer) -> bool:
    attributes = writer.node.attributes
    columns = 0 if attributes.get_int("transB", False) else 1
    a, b = _real(writer, 0), _real(writer, 3, axis=columns)
    if a is None or b is None:
        return False
    operands = [a, b]
    if writer.read(6) is not None:
        bias = _bias(writer, 6, factor=attributes.get_float("alpha", 1.0))
        if bias is None:
            return False
        operands.append(bias)
    y = _computed(writer, "Gemm", *operands, **_own(writer))
    return writer.read(7) is None or _stored(writer, y, 7)


_OF_ONNXRUNTIME: Mapping[str, Spelling] = {
    "QGemm": _gemm,
    "QLinearAdd": partial(_binary, "Add"),
    "QLinearAveragePool": partial(_unary, "AveragePool"),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": partial(_unary, "GlobalAveragePool"),
    "QLinearLeakyRelu": partial(_unary, "LeakyRelu"),
    "QLinearMul": partial(_binary, "Mul"),
    "QLinearReduceMean": _mean,
    "QLinearSigmoid": partial(_unary, "Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
}

QUANTIZED_SPELLINGS: Mapping[tuple[str, str], Spelling] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    **{(MICROSOFT, name): spelling for name, spelling in _OF_ONNXRUNTIME.items()},
}
"""How each is written, by domain and name."""
