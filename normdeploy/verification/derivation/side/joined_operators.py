"""Operators of onnxruntime that are several of ONNX's own in one, written as these, so that each of them has its law.

onnxruntime's optimizers join a product with the factor behind it, a sum with the norm or the activation behind it, a
convolution with its activation. The meaning is that of :mod:`normdeploy.graph.operators.contrib`; the types and shapes
of what stands between are those of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from normdeploy.graph.edit import free_name, put_constant, take_place
from normdeploy.graph.traits import MICROSOFT, is_standard

Spelling = Callable[["_Writer"], bool]
"""Writes what an operator computes; tells whether it could."""

_GELU = 20
"""The first operator set that has Gelu: it is spelled out before."""

_ACTIVATIONS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "HardSwish": (),
    "LeakyRelu": (("alpha", 0.01),), "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
}  # fmt: skip
"""Activations that are joined, with the names and defaults of their parameters, in order."""


def write_out(model: ir.Model) -> set[str]:
    """Write joined operators of a model's graph as what they join, in place.

    Args:
        model: a copy of its own.

    Returns:
        the names of the values that came in between.
    """
    made: set[str] = set()
    for node in list(model.graph):
        spelling = _SPELLINGS.get(node.op_type) if _is_joined(node) else None
        if spelling is None:
            continue
        writer = _Writer(model, node)
        if spelling(writer):
            made |= writer.put()
    return made


def has_joined(model: ir.Model) -> bool:
    """Tell whether an operator of a model's graph may be written out."""
    return any(_is_joined(node) for node in model.graph)


def _is_joined(node: ir.Node) -> bool:
    """Tell whether an operator may be written out; of ONNX's own domain onnxruntime has one more than ONNX."""
    own = node.domain == MICROSOFT or is_standard(node, "SimplifiedLayerNormalization")
    return own and node.op_type in _SPELLINGS


class _Writer:
    """What stands in the place of one operator: nodes, the last of which made its result."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self.opset = model.opset_imports.get("", 1)
        self.nodes: list[ir.Node] = []
        self.shown: dict[int, ir.Value] = {}  # other results, by place

    def read(self, place: int) -> ir.Value | None:
        """Return an operand, None where it is absent."""
        return self.node.inputs[place] if place < len(self.node.inputs) else None

    def asks(self, *places: int) -> bool:
        """Tell whether one of these results is read."""
        outputs = self.node.outputs
        return any(p < len(outputs) and (outputs[p].uses() or outputs[p].is_graph_output()) for p in places)

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write an operator; return its result."""
        result = self.node.outputs[0]
        name = free_name(self.model.graph, f"{result.name}.{op_type}{len(self.nodes)}")
        value = ir.Value(name=name, shape=result.shape, type=result.type)
        operator = ir.node(op_type, list(inputs), attributes, outputs=[value], name=self.node.name)
        operator.metadata_props.update(self.node.metadata_props)
        self.nodes.append(operator)
        return value

    def number(self, number: float) -> ir.Value:
        """Return a constant of the result's type."""
        result = self.node.outputs[0]
        return put_constant(self.model.graph, number, f"{result.name}.number", result.dtype or ir.DataType.FLOAT)

    def turned(self, value: ir.Value | None, side: str) -> ir.Value | None:
        """Return an operand of a FusedMatMul, its last two axes exchanged if that is asked for; None if unknown."""
        attributes = self.node.attributes
        if value is None or attributes.get_int(f"transBatch{side}", False):
            return None
        if not attributes.get_int(f"trans{side}", False):
            return value
        if value.shape is None or len(value.shape) < 2:
            return None
        rank = len(value.shape)
        made = self.add("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
        made.shape = ir.Shape([*value.shape[: rank - 2], value.shape[rank - 1], value.shape[rank - 2]])
        return made

    def put(self) -> set[str]:
        """Put the nodes in the operator's place; return the names of the values that came in between."""
        graph, node = self.model.graph, self.node
        graph.insert_before(node, self.nodes)
        kept: set[str | None] = set()
        for place, value in {**self.shown, 0: self.nodes[-1].outputs[0]}.items():
            if place < len(node.outputs) and node.outputs[place].name:
                take_place(value, node.outputs[place])
                kept.add(value.name)
        graph.remove(node, safe=True)
        return {str(n.outputs[0].name) for n in self.nodes} - kept


def _fused_matmul(writer: _Writer) -> bool:
    a, b = (writer.turned(writer.read(place), side) for place, side in enumerate("AB"))
    if a is None or b is None:
        return False
    product = writer.add("MatMul", a, b)
    alpha = writer.node.attributes.get_float("alpha", 1.0)
    if alpha != 1:
        writer.add("Mul", product, writer.number(alpha))
    return True


def _summed(writer: _Writer, first: ir.Value | None, *others: ir.Value | None) -> ir.Value | None:
    for other in others:
        first = first if other is None else writer.add("Add", first, other)
    return first


def _gelu(writer: _Writer) -> bool:
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


def _fast_gelu(writer: _Writer) -> bool:
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


def _quick_gelu(writer: _Writer) -> bool:
    x, alpha = writer.read(0), writer.node.attributes.get_float("alpha", 1.702)
    scaled = x if alpha == 1 else writer.add("Mul", x, writer.number(alpha))
    writer.add("Mul", x, writer.add("Sigmoid", scaled))
    return True


def _skip_layer_norm(writer: _Writer) -> bool:
    if writer.asks(1, 2):
        return False
    total = _skipped(writer, writer.read(4))
    return _norm(writer, total, "LayerNormalization", [writer.read(2), writer.read(3)])


def _skip_rms_norm(writer: _Writer) -> bool:
    if writer.asks(1, 2):
        return False
    total = _skipped(writer, writer.read(3))
    return _norm(writer, total, "RMSNormalization", [writer.read(2)])


def _skipped(writer: _Writer, bias: ir.Value | None) -> ir.Value | None:
    """Write the sum in front of a norm: the bias is that of the product, whichever of the two operands it is."""
    first, second = writer.read(0), writer.read(1)
    maker = None if second is None else second.producer()
    if maker is not None and is_standard(maker, "MatMul", "Gemm"):
        first, second = second, first
    return _summed(writer, first, bias, second)


def _norm(writer: _Writer, total: ir.Value | None, op_type: str, scales: Sequence[ir.Value | None]) -> bool:
    if total is None:
        return False
    writer.shown[3] = total
    epsilon = writer.node.attributes.get_float("epsilon", 1e-12)
    writer.add(op_type, total, *(scale for scale in scales if scale is not None), axis=-1, epsilon=epsilon)
    return True


def _rms_norm(writer: _Writer) -> bool:
    if writer.asks(1):
        return False
    attributes = writer.node.attributes
    axis, epsilon = attributes.get_int("axis", -1), attributes.get_float("epsilon", 1e-5)
    writer.add("RMSNormalization", writer.read(0), writer.read(1), axis=axis, epsilon=epsilon)
    return True


def _fused_conv(writer: _Writer) -> bool:
    attributes = writer.node.attributes
    own = {name: a.value for name, a in attributes.items() if not name.startswith("activation")}
    bias = writer.read(2)
    y = writer.add("Conv", writer.read(0), writer.read(1), *([] if bias is None else [bias]), **own)
    y = y if writer.read(3) is None else writer.add("Add", y, writer.read(3))
    return _activated(writer, y, [*attributes.get_floats("activation_params", [])])


def _fused_gemm(writer: _Writer) -> bool:
    attributes = writer.node.attributes
    own = {name: a.value for name, a in attributes.items() if not name.startswith("activation")}
    bias = writer.read(2)
    y = writer.add("Gemm", writer.read(0), writer.read(1), *([] if bias is None else [bias]), **own)
    given = [attributes.get_float(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    return _activated(writer, y, [float(number) for number in given if number is not None])


def _activated(writer: _Writer, y: ir.Value, parameters: Sequence[float]) -> bool:
    name = writer.node.attributes.get_string("activation", "") or ""
    if name == "Clip" and len(parameters) == 2:
        writer.add("Clip", y, *map(writer.number, parameters))
        return True
    if name and name not in _ACTIVATIONS:
        return False
    if name:
        wanted = _ACTIVATIONS[name]
        numbers = [*parameters, *(default for _, default in wanted[len(parameters) :])]
        writer.add(name, y, **{key: number for (key, _), number in zip(wanted, numbers, strict=False)})
    return True


_SPELLINGS: Mapping[str, Spelling] = {
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _rms_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
