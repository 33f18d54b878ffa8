"""Damage to what operators are: each makes something else of the same operands. Material for tests of the verifier.

A table of attributes, of constant operands, of operators that are taken for one another and of operands in each other's
place, applied wherever it fits; :func:`operator_damages` yields the damaged copies of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from graph_damage import Damaged
from onnx import ModelProto, NodeProto, helper, numpy_helper

Values = Sequence[Any]
Change = Callable[[ModelProto, NodeProto], None]

ATTRIBUTES: dict[str, Callable[[Any], Values]] = {
    "perm": lambda v: [[v[1], v[0], *v[2:]], [*v[:-2], v[-1], v[-2]]] if len(v) > 1 else [],
    "axis": lambda v: [v + 1, v - 1, 0],
    "axes": lambda v: [[n + 1 for n in v], [n - 1 for n in v]],
    "alpha": lambda v: [v * 1.001],
    "beta": lambda v: [v * 1.001],
    "gamma": lambda v: [v * 1.001],
    "scale": lambda v: [v * 1.001],
    "epsilon": lambda v: [v * 1.1, 0.0],
    "transA": lambda v: [1 - v],
    "transB": lambda v: [1 - v],
    "strides": lambda v: [[n + 1 for n in v], [1] * len(v)],
    "dilations": lambda v: [[n + 1 for n in v]],
    "pads": lambda v: [[n + 1 for n in v], [0] * len(v), [*v[len(v) // 2 :], *[n + 1 for n in v[: len(v) // 2]]]],
    "ceil_mode": lambda v: [1 - v],
    "count_include_pad": lambda v: [1 - v],
    "approximate": lambda v: [b"none" if v == b"tanh" else b"tanh"],
    "to": lambda _: [onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32, onnx.TensorProto.BOOL],
    "mode": lambda _: [b"reflect", b"edge", b"linear", b"nearest", b"CRD", b"DCR"],
    "nearest_mode": lambda _: [b"ceil", b"floor"],
    "coordinate_transformation_mode": lambda _: [b"align_corners", b"asymmetric", b"half_pixel"],
    "largest": lambda v: [1 - v],
    "exclusive": lambda v: [1 - v],
    "reverse": lambda v: [1 - v],
    "is_causal": lambda v: [1 - v],
    "select_last_index": lambda v: [1 - v],
    "direction": lambda _: [b"reverse"],
    "linear_before_reset": lambda v: [1 - v],
    "blocksize": lambda v: [v + 1],
    "num_groups": lambda v: [1, 2 * v],
    "group": lambda _: [1],
    "start": lambda v: [v + 1],
    "end": lambda v: [v + 1],
}
"""What an attribute is taken for, from what it is."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "Softmax": {"axis": -1},
    "LogSoftmax": {"axis": -1},
    "Gather": {"axis": 0},
    "GatherElements": {"axis": 0},
    "ArgMax": {"axis": 0, "select_last_index": 0},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    "AveragePool": {"count_include_pad": 0, "ceil_mode": 0},
    "MaxPool": {"ceil_mode": 0},
    "Gelu": {"approximate": b"none"},
    "CumSum": {"exclusive": 0, "reverse": 0},
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5},
    "RMSNormalization": {"axis": -1, "epsilon": 1e-5},
    "Attention": {"is_causal": 0},
    "DepthToSpace": {"mode": b"DCR"},
    "Pad": {"mode": b"constant"},
    "QuantizeLinear": {"axis": 1},
    "DequantizeLinear": {"axis": 1},
}
"""What attributes that are not written mean, of those worth changing."""

ALIKE: dict[str, Sequence[tuple[str, dict[str, Any]]]] = {
    "Relu": [("LeakyRelu", {"alpha": 1e-3}), ("Elu", {"alpha": 1e-3}), ("Abs", {}), ("Softplus", {}), ("Identity", {})],
    "LeakyRelu": [("Relu", {}), ("Elu", {})],
    "Sigmoid": [("HardSigmoid", {}), ("Tanh", {}), ("Identity", {})],
    "HardSigmoid": [("Sigmoid", {})],
    "HardSwish": [("Mish", {}), ("Relu", {})],
    "Tanh": [("Softsign", {}), ("Erf", {})],
    "Erf": [("Tanh", {}), ("Identity", {})],
    "Gelu": [("Relu", {}), ("HardSwish", {})],
    "Softmax": [("LogSoftmax", {}), ("Hardmax", {}), ("Identity", {})],
    "LogSoftmax": [("Softmax", {})],
    "Softplus": [("Relu", {})],
    "Exp": [("Softplus", {})],
    "Sqrt": [("Identity", {}), ("Reciprocal", {})],
    "Reciprocal": [("Identity", {}), ("Neg", {})],
    "Neg": [("Identity", {}), ("Abs", {})],
    "Abs": [("Identity", {}), ("Relu", {})],
    "Sign": [("Identity", {}), ("Tanh", {})],
    "Floor": [("Ceil", {}), ("Round", {}), ("Identity", {})],
    "Ceil": [("Floor", {})],
    "Round": [("Floor", {}), ("Identity", {})],
    "Not": [("Identity", {})],
    "Add": [("Sub", {}), ("Mul", {}), ("Max", {})],
    "Sub": [("Add", {})],
    "Mul": [("Add", {}), ("Div", {}), ("Max", {})],
    "Div": [("Mul", {})],
    "Max": [("Min", {}), ("Add", {})],
    "Min": [("Max", {})],
    "And": [("Or", {}), ("Xor", {})],
    "Or": [("And", {}), ("Xor", {})],
    "Less": [("LessOrEqual", {}), ("Greater", {})],
    "LessOrEqual": [("Less", {})],
    "Greater": [("GreaterOrEqual", {}), ("Less", {})],
    "GreaterOrEqual": [("Greater", {})],
    "Equal": [("LessOrEqual", {}), ("GreaterOrEqual", {})],
    "GlobalAveragePool": [("GlobalMaxPool", {})],
    "GlobalMaxPool": [("GlobalAveragePool", {})],
    "ReduceMean": [("ReduceSum", {}), ("ReduceMax", {}), ("ReduceL1", {}), ("ReduceL2", {})],
    "ReduceSum": [("ReduceMean", {}), ("ReduceL1", {})],
    "ReduceMax": [("ReduceMean", {}), ("ReduceMin", {})],
    "MaxPool": [("AveragePool", {})],
    "AveragePool": [("MaxPool", {})],
    "ArgMax": [("ArgMin", {})],
    "LayerNormalization": [("RMSNormalization", {})],
    "Clip": [("Identity", {}), ("Relu", {})],
}
"""Operators that are taken for one another; they keep attributes of the same names."""

ONE_INPUT = frozenset({"Identity", "Relu"})
"""Operators that take the first operand alone, where they stand in for others."""

EXCHANGED = (("Sub", 0, 1), ("Div", 0, 1), ("Pow", 0, 1), ("Concat", 0, 1), ("Where", 1, 2), ("MatMul", 0, 1))
EXCHANGED += (("Less", 0, 1), ("Greater", 0, 1), ("Attention", 0, 1), ("Attention", 1, 2), ("Gather", 0, 1))


def _constants(model: ModelProto) -> dict[str, np.ndarray]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _changed(value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what a constant may be taken for: one number off, or two in each other's place."""
    flat = value.reshape(-1)
    if value.dtype.kind == "f":
        for what, at in (("largest", int(np.argmax(np.abs(flat)))), ("smallest", int(np.argmin(np.abs(flat))))):
            changed = flat.copy()
            changed[at] = changed[at] * np.asarray(1.001, value.dtype) or np.asarray(1e-3, value.dtype)
            if np.isfinite(flat[at]):
                yield f"{what} number off by 1e-3", changed.reshape(value.shape)
        if value.ndim > 1 and len(value) > 1:
            changed = value.copy()
            changed[-1] = value[-2]
            yield "last row its neighbour's", changed
    elif value.dtype.kind in "iu":
        for what, at, step in (("first", 0, 1), ("last", -1, 1), ("first", 0, -1), ("last", -1, -1)):
            changed = flat.copy()
            changed[at] += step
            yield f"{what} number {step:+d}", changed.reshape(value.shape)
    elif value.dtype.kind == "b":
        for what, at in (("first", 0), ("last", -1)):
            changed = flat.copy()
            changed[at] = not changed[at]
            yield f"{what} truth turned", changed.reshape(value.shape)
    if flat.size > 1:
        at = next((i for i in range(1, flat.size) if flat[i] != flat[0]), None)
        if at is not None:
            changed = flat.copy()
            changed[[0, at]] = changed[[at, 0]]
            yield "two numbers exchanged", changed.reshape(value.shape)


def _of_node(
    node: NodeProto, constants: dict[str, np.ndarray]
) -> Iterator[tuple[str, Callable[[ModelProto, NodeProto], None]]]:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for name, value in {**DEFAULTS.get(node.op_type, {}), **given}.items():
        for number, other in enumerate(ATTRIBUTES.get(name, lambda _: [])(value)):
            if other != value:
                yield f"{name} {number}", _attribute(name, other)
    for index, name in enumerate(node.input):
        if name in constants and constants[name].size:
            for what, other in _changed(constants[name]):
                if not np.array_equal(other, constants[name]):
                    yield f"operand {index}: {what}", _operand(index, other)
    for other, attributes in ALIKE.get(node.op_type, ()):
        yield f"as {other}", _as(other, attributes)
    for kind, a, b in EXCHANGED:
        if node.op_type == kind and max(a, b) < len(node.input) and node.input[a] != node.input[b]:
            yield f"operands {a} and {b} exchanged", _exchange(a, b)


def _attribute(name: str, value: Any) -> Change:
    def change(_: ModelProto, node: NodeProto) -> None:
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def _operand(index: int, value: np.ndarray) -> Change:
    def change(model: ModelProto, node: NodeProto) -> None:
        name = f"damaged_{node.input[index]}"
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        node.input[index] = name

    return change


_TAKEN = {
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "AveragePool": ("kernel_shape", "strides", "pads", "ceil_mode", "auto_pad", "dilations"),
    "MaxPool": ("kernel_shape", "strides", "pads", "ceil_mode", "auto_pad", "dilations"),
    "RMSNormalization": ("axis", "epsilon", "stash_type"),
}
_REDUCES = ("axis", "axes", "keepdims", "noop_with_empty_axes", "select_last_index")


def _as(other: str, attributes: dict[str, Any]) -> Change:
    def change(_: ModelProto, node: NodeProto) -> None:
        kept = [a for a in node.attribute if a.name in _TAKEN.get(other, _REDUCES) and a.name not in attributes]
        if other in ONE_INPUT or (other == "Softplus"):
            kept = []
        inputs = list(node.input)[: 1 if other in ONE_INPUT else 2 if other == "RMSNormalization" else None]
        node.CopyFrom(helper.make_node(other, inputs, list(node.output)[:1], name=node.name, **attributes))
        node.attribute.extend(kept)

    return change


def _exchange(a: int, b: int) -> Change:
    def change(_: ModelProto, node: NodeProto) -> None:
        node.input[a], node.input[b] = node.input[b], node.input[a]

    return change


def operator_damages(model: ModelProto, *, first_only: bool = False) -> Iterator[Damaged]:
    """Yield every copy of a model in which one operator makes something else of its operands.

    Args:
        first_only: one place per operator and kind.
    """
    constants, seen = _constants(model), set()
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Constant":
            continue
        for kind, change in _of_node(node, constants):
            if first_only and (node.op_type, kind) in seen:
                continue
            seen.add((node.op_type, kind))
            copy = ModelProto()
            copy.CopyFrom(model)
            change(copy, copy.graph.node[index])
            yield Damaged(f"{node.op_type} {kind}", node.name or node.output[0], copy)
