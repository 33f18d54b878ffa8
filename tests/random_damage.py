"""Damage to any graph, drawn at random: attributes, constants, wiring, operators, names of outputs.

:mod:`graph_damage` has what tools and people do to networks; this is what nobody thought of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

Damage = Callable[[onnx.ModelProto, NodeProto, np.random.Generator], str]
"""Damages one node in place; tells what it did, or "" where it does not apply."""

OTHERS: Mapping[str, tuple[str, ...]] = {
    "Add": ("Sub", "Mul", "Max"),
    "Sub": ("Add",),
    "Mul": ("Add", "Div", "Max"),
    "Max": ("Min", "Add"),
    "ReduceMean": ("ReduceSum", "ReduceMax", "ReduceMin"),
    "ReduceSum": ("ReduceMean",),
    "ReduceMax": ("ReduceMin", "ReduceMean"),
    "Relu": ("Abs", "LeakyRelu", "Identity"),
    "LeakyRelu": ("Relu",),
    "Abs": ("Relu", "Identity"),
    "Neg": ("Identity", "Abs"),
    "Identity": ("Neg",),
    "Sigmoid": ("HardSigmoid", "Tanh"),
    "Softmax": ("LogSoftmax", "Hardmax"),
}
"""Operators of the same operands."""


def _constants(model: onnx.ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def attribute(model: onnx.ModelProto, node: NodeProto, rng: np.random.Generator) -> str:
    """Move an attribute by a little, or exchange two entries of a permutation."""
    if not node.attribute:
        return ""
    chosen = node.attribute[int(rng.integers(len(node.attribute)))]
    if chosen.type == AttributeProto.INT:
        chosen.i += int(rng.choice([-2, -1, 1, 2]))
    elif chosen.type == AttributeProto.FLOAT:
        chosen.f = chosen.f * float(rng.choice([0, 2, 1.1])) + 0.001
    elif chosen.type == AttributeProto.INTS and chosen.name == "perm":
        one, other = rng.choice(len(chosen.ints), 2, replace=False).tolist()
        chosen.ints[one], chosen.ints[other] = chosen.ints[other], chosen.ints[one]
    elif chosen.type == AttributeProto.INTS and chosen.ints:
        chosen.ints[int(rng.integers(len(chosen.ints)))] += int(rng.choice([-1, 1]))
    elif node.op_type == "Einsum":
        operands, result = chosen.s.decode().split("->")
        chosen.s = f"{','.join(operands.split(',')[::-1])}->{result}".encode()
    else:
        return ""
    return f"{node.op_type}.{chosen.name}"


def _reshaped(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the same numbers along other axes: (3, 1) for (1, 3), or one axis more."""
    sizes = [size for size in array.shape if size != 1]
    ones, at = array.ndim - len(sizes), int(rng.integers(len(sizes) + 1))
    ways = (array.T, array.reshape(array.shape[::-1]), array[..., None])
    moved = array.reshape((*sizes[:at], *(1,) * ones, *sizes[at:]))
    return (*ways, moved)[int(rng.integers(4))]


def constant(model: onnx.ModelProto, node: NodeProto, rng: np.random.Generator) -> str:
    """Change one number, all of them, their order, or the axes that they stand along."""
    stored = _constants(model)
    places = [index for index, name in enumerate(node.input) if name in stored]
    if not places:
        return ""
    index = int(rng.choice(places))
    old = numpy_helper.to_array(stored[node.input[index]])
    if not old.size:
        return ""
    new, at = old.copy(), int(rng.integers(old.size))
    how = "one" if old.dtype.kind == "i" else str(rng.choice(["one", "all", "order", "rows", "axes"]))
    if old.dtype.kind == "i":
        new.reshape(-1)[at] += int(rng.choice([-1, 1]))
    elif how == "one":
        new.reshape(-1)[at] = new.reshape(-1)[at] * np.float32(1.03) + np.float32(0.01)
    elif how == "all":
        new = new * np.float32(1.01)
    elif how == "order":
        new = rng.permutation(new.reshape(-1)).reshape(new.shape)
    elif how == "rows" and new.ndim:
        new = rng.permutation(new, axis=int(rng.integers(new.ndim)))
    elif new.ndim:
        new = _reshaped(new, rng)
    name = f"{node.input[index]}.damaged"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(new), name))
    node.input[index] = name
    return f"{how} of {node.op_type}'s operand {index}"


def exchanged(model: onnx.ModelProto, node: NodeProto, rng: np.random.Generator) -> str:
    """Exchange the first two operands."""
    if len(node.input) < 2:
        return ""
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return f"operands of {node.op_type}"


def rewired(model: onnx.ModelProto, node: NodeProto, rng: np.random.Generator) -> str:
    """Read another value that is computed before."""
    before = [value.name for value in model.graph.input]
    for other in model.graph.node:
        if other.output[0] == node.output[0]:
            break
        before += other.output
    index = int(rng.integers(len(node.input)))
    others = [name for name in before if name != node.input[index]]
    if node.input[index] in _constants(model) or not others:
        return ""
    node.input[index] = str(rng.choice(others))
    return f"wire to {node.op_type}'s operand {index}"


def operator(model: onnx.ModelProto, node: NodeProto, rng: np.random.Generator) -> str:
    """Compute something else of the same operands."""
    if node.op_type not in OTHERS:
        return ""
    old, node.op_type = node.op_type, str(rng.choice(OTHERS[node.op_type]))
    if old == "LeakyRelu":
        del node.attribute[:]
    return f"{old} as {node.op_type}"


def outputs(model: onnx.ModelProto, node: NodeProto, rng: np.random.Generator) -> str:
    """Exchange the names of two outputs."""
    names = [value.name for value in model.graph.output]
    if len(names) < 2:
        return ""
    one, other = (str(name) for name in rng.choice(names, 2, replace=False))
    turned = {one: other, other: one}
    for at in model.graph.node:
        for listed in (at.input, at.output):
            renamed = [turned.get(name, name) for name in listed]
            del listed[:]
            listed.extend(renamed)
    return "names of outputs"


DAMAGES: tuple[tuple[Damage, int], ...] = (
    (attribute, 2), (constant, 4), (exchanged, 1), (rewired, 3), (operator, 1), (outputs, 1),
)  # fmt: skip
"""What is done, and how often beside the others."""


def damaged(model: onnx.ModelProto, rng: np.random.Generator) -> tuple[str, onnx.ModelProto] | None:
    """Return a damaged copy and what was done; None where that does not apply, or leaves no ONNX."""
    made = copy.deepcopy(model)
    del made.graph.value_info[:]
    kinds, weights = zip(*DAMAGES, strict=True)
    chosen = kinds[int(rng.choice(len(kinds), p=np.array(weights) / sum(weights)))]
    what = chosen(made, made.graph.node[int(rng.integers(len(made.graph.node)))], rng)
    try:
        onnx.checker.check_model(made, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return (what, made) if what else None
