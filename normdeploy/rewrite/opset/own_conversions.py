"""What onnx's version converter does not translate, or translates into something else.

=====================  ================================================================================================
Hardmax below 13       flattens from its axis on, and has one 1 in all of that: Flatten, Hardmax, Reshape
Dropout below 12       its mask is false in inference, of x's type below 10; from 12 on it is true
BatchNormalization     below 9, ``spatial = 0``: a mean and a variance per element of a sample, so arithmetic
GroupNormalization     below 21, a scale and a shift per group; from 21 on per channel: each is repeated
Scan below 9           a batch of scans: refused by name
=====================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import round_once


class Sketch:
    """One node's translation: a graph that takes ``in_0``, ``in_1``, ... and returns ``out_0``, ``out_1``, ...

    Args:
        node: the node to translate.
    """

    def __init__(self, node: ir.Node) -> None:
        self.node = node
        self.inputs = [
            None if value is None else ir.Value(name=f"in_{index}", type=value.type, shape=value.shape)
            for index, value in enumerate(node.inputs)
        ]
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def need(self, index: int) -> ir.Value:
        """Return a required input's stand-in."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise GraphError(f"{describe(self.node)} lacks input {index}; expected one: export the model again")
        return value

    def op(self, op_type: str, inputs: Sequence[ir.Value], kind: ir.DataType | None, **attributes: object) -> ir.Value:
        """Append a node; return its output, of the element type given."""
        made = ir.node(op_type, list(inputs), attributes)  # type: ignore[arg-type]  # what the attributes may be is wider
        value = made.outputs[0]
        value.name = f"made_{len(self.nodes)}"
        value.type = None if kind is None else ir.TensorType(kind)
        self.nodes.append(made)
        return value

    def integers(self, values: Sequence[int]) -> ir.Value:
        """Return a constant vector of int64."""
        name = f"constant_{len(self.constants)}"
        tensor = ir.tensor(np.array(values, dtype=np.int64), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(values)]), const_value=tensor)
        self.constants.append(value)
        return value

    def number(self, value: float, kind: ir.DataType) -> ir.Value:
        """Return a constant of one number."""
        name = f"constant_{len(self.constants)}"
        tensor = ir.tensor(round_once(np.array(value), kind), dtype=kind, name=name)
        made = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([]), const_value=tensor)
        self.constants.append(made)
        return made

    def graph(self, outputs: Sequence[ir.Value], version: int) -> ir.Graph:
        """Return the translation; ``outputs`` stand for the node's named outputs, in order."""
        given = [value for value in self.inputs if value is not None]
        named = [value for value in self.node.outputs if value.name]
        for ours, theirs in zip(outputs, named, strict=True):
            ours.type, ours.shape = theirs.type or ours.type, theirs.shape
        return ir.Graph(
            given, list(outputs), nodes=self.nodes, initializers=self.constants, opset_imports={"": version}
        )


Translation = Callable[[ir.Node, int, int], ir.Graph | None]
"""(node, its version, version wanted) -> its translation, or None where onnx's converter is right."""


def describe(node: ir.Node) -> str:
    """Return how an error names a node."""
    return f"node {node.name or node.outputs[0].name!r} ({node.op_type})"


def _hardmax(node: ir.Node, _: int, version: int) -> ir.Graph | None:
    sketch = Sketch(node)
    x = sketch.need(0)
    axis = node.attributes.get_int("axis", 1)
    if x.shape is not None and axis in (-1, len(x.shape) - 1):
        return sketch.graph([sketch.op("Hardmax", [x], x.dtype, axis=-1)], version)
    sizes = sketch.op("Shape", [x], ir.DataType.INT64)
    flat = sketch.op("Flatten", [x], x.dtype, axis=axis)
    chosen = sketch.op("Hardmax", [flat], x.dtype, axis=-1)
    return sketch.graph([sketch.op("Reshape", [chosen, sizes], x.dtype)], version)


def _dropout(node: ir.Node, old: int, version: int) -> ir.Graph | None:
    if len(node.outputs) < 2 or not node.outputs[1].name:
        return None
    sketch = Sketch(node)
    x = sketch.need(0)
    kind = x.dtype if old < 10 else ir.DataType.BOOL
    if kind is None:
        raise GraphError(f"{describe(node)} returns its mask, and the type of its input is not known; expected one")
    zero = ir.tensor(np.zeros(1, kind.numpy()), dtype=kind, name="zero")
    sizes = sketch.op("Shape", [x], ir.DataType.INT64)
    mask = sketch.op("ConstantOfShape", [sizes], kind, value=zero)
    outputs = [sketch.op("Identity", [x], x.dtype)] if node.outputs[0].name else []
    return sketch.graph([*outputs, mask], version)


def _batch_norm(node: ir.Node, _: int, version: int) -> ir.Graph | None:
    if "spatial" not in node.attributes or node.attributes["spatial"].as_int():
        return None
    if any(output.name for output in node.outputs[1:]):
        raise GraphError(f"{describe(node)} returns statistics; expected one output: export it in evaluation mode")
    sketch = Sketch(node)
    x, scale, shift, mean, variance = (sketch.need(index) for index in range(5))
    kind = x.dtype or ir.DataType.FLOAT
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    root = sketch.op("Sqrt", [sketch.op("Add", [variance, sketch.number(epsilon, kind)], kind)], kind)
    normal = sketch.op("Div", [sketch.op("Sub", [x, mean], kind), root], kind)
    return sketch.graph([sketch.op("Add", [sketch.op("Mul", [normal, scale], kind), shift], kind)], version)


def _group_norm(node: ir.Node, _: int, version: int) -> ir.Graph | None:
    sketch = Sketch(node)
    x, parameters = sketch.need(0), [sketch.need(1), sketch.need(2)]
    groups = node.attributes["num_groups"].as_int()
    channels = None if x.shape is None else x.shape[1]
    if isinstance(channels, int):
        sizes = sketch.integers([groups, channels // groups])
    else:
        count = sketch.op("Shape", [x], ir.DataType.INT64, start=1, end=2)
        each = sketch.op("Div", [count, sketch.integers([groups])], ir.DataType.INT64)
        sizes = sketch.op("Concat", [sketch.integers([groups]), each], ir.DataType.INT64, axis=0)
    column, flat = sketch.integers([groups, 1]), sketch.integers([-1])
    spread = [
        sketch.op(
            "Reshape",
            [sketch.op("Expand", [sketch.op("Reshape", [p, column], p.dtype), sizes], p.dtype), flat],
            p.dtype,
        )
        for p in parameters
    ]
    kept = {name: attribute.value for name, attribute in node.attributes.items()}
    return sketch.graph([sketch.op("GroupNormalization", [x, *spread], x.dtype, **kept)], version)


def _scan(node: ir.Node, _: int, version: int) -> ir.Graph | None:
    raise GraphError(
        f"{describe(node)} is of opset 8, where it runs over a batch; expected the Scan of opset 9 or newer, which "
        f"opset {version} has: export the model again with opset_version=9 or newer"
    )


_BELOW: dict[str, tuple[int, Translation]] = {
    "BatchNormalization": (9, _batch_norm),
    "Dropout": (12, _dropout),
    "GroupNormalization": (21, _group_norm),
    "Hardmax": (13, _hardmax),
    "Scan": (9, _scan),
}
"""By operator: the version from which on it means what it means today, and what says the old meaning."""


def own_translation(node: ir.Node, old: int, new: int) -> ir.Graph | None:
    """Return a node's translation where onnx's converter has none or a wrong one; None where the converter is right.

    Args:
        node: of the standard domain.
        old: the version that gives it its meaning.
        new: the version wanted.

    Raises:
        GraphError: the newer version cannot say it.
    """
    if node.op_type not in _BELOW:
        return None
    below, translate = _BELOW[node.op_type]
    return translate(node, old, new) if old < below <= new else None
