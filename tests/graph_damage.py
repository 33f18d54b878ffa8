"""Damage to exported graphs, as tools, people and disks do it: material for tests of the verifier.

Each kind takes a model and yields damaged copies, one per place where it applies; a copy that would store the same
bytes is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from harmless_changes import squared, undone
from onnx import ModelProto, NodeProto, helper, numpy_helper

Change = Callable[[ModelProto, NodeProto], bool]
"""Damages one node in place; False where it does not apply."""

NORMS = ("BatchNormalization", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization")
LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")

GUARD = 1e-30
"""An epsilon below it only keeps 0 from being divided by 0, as in x / (std + eps) written as a norm: ten times as much
of it changes no result by a rounding."""


@dataclass(frozen=True)
class Damaged:
    """A damaged copy. Args: kind: what was done. where: to which node. model: the copy."""

    kind: str
    where: str
    model: ModelProto


def _value(model: ModelProto, name: str) -> np.ndarray | None:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            return numpy_helper.to_array(tensor)
    return None


def _store(model: ModelProto, node: NodeProto, index: int, array: np.ndarray) -> bool:
    """Give a node a constant of its own, so that no other reader of it is damaged."""
    old = _value(model, node.input[index])
    if old is None or (old.shape == array.shape and np.array_equal(old, array)):
        return False
    name = f"damaged_{node.input[index]}"
    model.graph.initializer.append(numpy_helper.from_array(array.astype(old.dtype), name))
    node.input[index] = name
    return True


def _place(model: ModelProto, node: NodeProto) -> int:
    return next(i for i, other in enumerate(model.graph.node) if other.output[:1] == node.output[:1])


def _on_input(index: int, change: Callable[[np.ndarray], np.ndarray | None], *types: str) -> Change:
    def damage(model: ModelProto, node: NodeProto) -> bool:
        if node.op_type not in types or len(node.input) <= index:
            return False
        value = _value(model, node.input[index])
        if value is None or value.dtype.kind != "f" or not value.size:
            return False
        changed = change(value.copy())
        return changed is not None and _store(model, node, index, changed)

    return damage


def _on_integers(index: int, change: Callable[[np.ndarray], np.ndarray], *types: str) -> Change:
    """Change a constant operand of integers: places, amounts, axes."""

    def damage(model: ModelProto, node: NodeProto) -> bool:
        if node.op_type not in types or len(node.input) <= index:
            return False
        value = _value(model, node.input[index])
        return value is not None and bool(value.size) and _store(model, node, index, change(value.copy()))

    return damage


def _on_weight(change: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    """Apply to the constant operand of a linear operator."""

    def damage(model: ModelProto, node: NodeProto) -> bool:
        return any(_on_input(index, change, *LINEAR)(model, node) for index in (1, 0))

    return damage


def _attribute(name: str, change: Callable[[float | int], float | int], *types: str, default: float | int) -> Change:
    def damage(model: ModelProto, node: NodeProto) -> bool:
        if node.op_type not in types:
            return False
        old = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
        new = change(old)
        if new == old:
            return False
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, new)])
        return True

    return damage


def _one(change: Callable[[np.float32], np.float32]) -> Callable[[np.ndarray], np.ndarray]:
    """Change the entry of the largest magnitude."""

    def apply(value: np.ndarray) -> np.ndarray:
        at = np.unravel_index(int(np.argmax(np.abs(value))), value.shape)
        value[at] = change(value[at])
        return value

    return apply


def _swapped(value: np.ndarray, axis: int) -> np.ndarray | None:
    if value.ndim <= axis or value.shape[axis] < 2:
        return None
    order = np.arange(value.shape[axis])
    order[:2] = order[1::-1]
    return np.take(value, order, axis=axis)


def _transposed(value: np.ndarray) -> np.ndarray | None:
    return value.swapaxes(0, 1).copy() if value.ndim >= 2 and value.shape[0] == value.shape[1] else None


def _bfloat16(value: np.ndarray) -> np.ndarray:
    return (value.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _rolled_statistics(model: ModelProto, node: NodeProto) -> bool:
    done = [_on_input(i, lambda v: np.roll(v, 1), "BatchNormalization")(model, node) for i in (3, 4)]
    return any(done)


def _exchanged(model: ModelProto, node: NodeProto) -> bool:
    """Scale and shift in each other's place."""
    if node.op_type not in NORMS or len(node.input) < 3:
        return False
    a, b = _value(model, node.input[1]), _value(model, node.input[2])
    if a is None or b is None or a.shape != b.shape or np.array_equal(a, b):
        return False
    node.input[1], node.input[2] = node.input[2], node.input[1]
    return True


def _bypassed(*types: str) -> Change:
    def damage(model: ModelProto, node: NodeProto) -> bool:
        if node.op_type not in types:
            return False
        outputs = list(node.output[:1])
        first = node.input[0]
        if any(node.output[1:]):  # other nodes read what it found of its rows
            node.output[0] += "_unread"
            model.graph.node.insert(_place(model, node) + 1, helper.make_node("Identity", [first], outputs))
            return True
        node.CopyFrom(helper.make_node("Identity", [first], outputs, name=node.name))
        return True

    return damage


def _retyped(old: str, new: str, **attributes: float) -> Change:
    def damage(model: ModelProto, node: NodeProto) -> bool:
        if node.op_type != old:
            return False
        node.CopyFrom(helper.make_node(new, list(node.input), list(node.output), name=node.name, **attributes))
        return True

    return damage


def _pads_moved(model: ModelProto, node: NodeProto) -> bool:
    """The window sits one place off."""
    for attribute in node.attribute:
        if node.op_type == "Conv" and attribute.name == "pads" and any(attribute.ints):
            pads = list(attribute.ints)
            half = len(pads) // 2
            attribute.ints[:] = [n + 1 for n in pads[:half]] + [max(n - 1, 0) for n in pads[half:]]
            return list(attribute.ints) != pads
    return False


def _rounded_result(model: ModelProto, node: NodeProto) -> bool:
    """The result passes through bfloat16, as an eager accelerator does it."""
    if node.op_type not in (*LINEAR, *NORMS):
        return False
    result = node.output[0]
    node.output[0] = f"{result}_exact"
    names = [f"{result}_exact", f"{result}_low", result]
    at = _place(model, node)
    for offset, to in enumerate((onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT)):
        cast = helper.make_node("Cast", [names[offset]], [names[offset + 1]], to=to)
        model.graph.node.insert(at + 1 + offset, cast)
    return True


def _wrong_row(model: ModelProto, node: NodeProto) -> bool:
    """One row of a table holds its neighbour's."""
    table = _value(model, node.input[0]) if node.op_type == "Gather" else None
    if table is None or table.dtype.kind != "f" or table.ndim < 2 or len(table) < 2:
        return False
    table = table.copy()
    table[-1] = table[-2]
    return _store(model, node, 0, table)


def _operands_exchanged(model: ModelProto, node: NodeProto) -> bool:
    if node.op_type not in ("Concat", "Sub", "Div") or len(node.input) < 2:
        return False
    if node.input[0] == node.input[1] or (node.op_type == "Concat" and undone(model, node)):
        return False  # nothing is damaged
    if node.op_type == "Sub" and squared(model, node.output[0]):
        return False  # (b - a)^2 is (a - b)^2
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return True


def _axes_exchanged(model: ModelProto, node: NodeProto) -> bool:
    """The last two axes of a transposition in each other's place."""
    for attribute in node.attribute:
        if node.op_type == "Transpose" and attribute.name == "perm" and len(attribute.ints) > 1:
            attribute.ints[:] = [*attribute.ints[:-2], attribute.ints[-1], attribute.ints[-2]]
            return True
    return False


def _other_axis(model: ModelProto, node: NodeProto) -> bool:
    return _attribute("axis", lambda axis: -2 if axis == -1 else -1, "Softmax", default=-1)(model, node)


KINDS: dict[str, Change] = {
    "epsilon x10": _attribute("epsilon", lambda e: e * 10 if e > GUARD else e, *NORMS, default=1e-5),
    "epsilon /10": _attribute("epsilon", lambda e: e / 10 if e > GUARD else e, *NORMS, default=1e-5),
    "epsilon 0": _attribute("epsilon", lambda _: 0.0, *NORMS, default=1e-5),
    "training mode": _attribute("training_mode", lambda _: 1, "BatchNormalization", default=0),
    "scale dropped": _on_input(1, np.ones_like, *NORMS),
    "shift dropped": _on_input(2, np.zeros_like, *NORMS),
    "scale and shift exchanged": _exchanged,
    "neighbour's scale": _on_input(1, lambda v: np.roll(v, 1), *NORMS),
    "one scale off by 1e-3": _on_input(1, _one(lambda x: x * np.float32(1.001)), *NORMS),
    "unbiased variance": _on_input(4, lambda v: v * np.float32(64 / 63), "BatchNormalization"),
    "stale running mean": _on_input(3, np.zeros_like, "BatchNormalization"),
    "stale running variance": _on_input(4, np.ones_like, "BatchNormalization"),
    "neighbour's statistics": _rolled_statistics,
    "norm left out": _bypassed(*NORMS),
    "one weight's last bit": _on_weight(_one(lambda x: np.nextafter(x, np.float32(np.inf), dtype=np.float32))),
    "one weight off by 1e-3": _on_weight(_one(lambda x: x * np.float32(1.001))),
    "one weight's sign": _on_weight(_one(lambda x: -x)),
    "swapped output channels": _on_weight(lambda v: _swapped(v, 0)),
    "swapped input channels": _on_weight(lambda v: _swapped(v, 1)),
    "transposed square weight": _on_weight(_transposed),
    "weights rounded to float16": _on_weight(lambda v: v.astype(np.float16).astype(np.float32)),
    "weights cut to bfloat16": _on_weight(_bfloat16),
    "bias dropped": _on_input(2, np.zeros_like, "Conv", "ConvTranspose", "Gemm"),
    "one bias off by 1e-3": _on_input(2, _one(lambda x: x * np.float32(1.001)), "Conv", "ConvTranspose", "Gemm"),
    "neighbour's bias": _on_input(2, lambda v: np.roll(v, 1), "Conv", "ConvTranspose", "Gemm"),
    "padding moved": _pads_moved,
    "result in bfloat16": _rounded_result,
    "activation left out": _bypassed("Relu", "Sigmoid", "Tanh", "Gelu", "Softmax"),
    "activation leaks": _retyped("Relu", "LeakyRelu", alpha=1e-3),
    "maximum for average": _retyped("GlobalAveragePool", "GlobalMaxPool"),
    "difference for sum": _retyped("Add", "Sub"),
    "operands exchanged": _operands_exchanged,
    "softmax over another axis": _other_axis,
    "one wrong row of a table": _wrong_row,
    "axes of a transposition exchanged": _axes_exchanged,
    "indices shifted": _on_integers(1, lambda v: np.where(v == v.max(), v - 1, v + 1), "Gather", "GatherElements"),
    "slice begins one later": _on_integers(1, lambda v: v + 1, "Slice"),
    "slice along another axis": _on_integers(3, lambda v: np.where(v > 0, v - 1, v + 1), "Slice"),
    "padded one further": _on_integers(1, lambda v: np.where(np.arange(v.size) == v.argmax(), v + 1, v), "Pad"),
    "padded on the other side": _on_integers(1, lambda v: np.roll(v, v.size // 2), "Pad"),
    "joined along another axis": _attribute("axis", lambda axis: axis - 1 if axis else 1, "Concat", default=0),
}


def damages(model: ModelProto, *, kinds: tuple[str, ...] | None = None, first_only: bool = False) -> Iterator[Damaged]:
    """Yield every damaged copy of a model: each kind at each node where it applies.

    Args:
        kinds: which; all by default. first_only: one place per kind.
    """
    for kind in kinds or tuple(KINDS):
        for index, node in enumerate(model.graph.node):
            copy = ModelProto()
            copy.CopyFrom(model)
            if KINDS[kind](copy, copy.graph.node[index]):
                yield Damaged(kind, f"{node.op_type} {node.name or node.output[0]}", copy)
                if first_only:
                    break
    if kinds is None and len(model.graph.output) > 1:
        copy = ModelProto()
        copy.CopyFrom(model)
        outputs = list(copy.graph.output)
        del copy.graph.output[:]
        copy.graph.output.extend(reversed(outputs))
        yield Damaged("permuted outputs", "graph", copy)
        copy = ModelProto()
        copy.CopyFrom(model)
        del copy.graph.output[-1]
        yield Damaged("missing output", "graph", copy)
