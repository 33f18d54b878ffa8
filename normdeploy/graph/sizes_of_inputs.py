"""Which sizes a graph's constants ask of its dynamic inputs: a convolution's weight tells how many channels it reads.

Converters declare inputs as ``[unk__1, unk__2, unk__3, unk__4]`` of which one size alone is run by any runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.onnx_files import declared
from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import Trait, has, is_standard, kind_of

_Asked = Iterator[tuple[int, int]]


def asked_sizes(graph: ir.Graph) -> dict[str, int]:
    """Return the size that constants ask of each dynamic dimension, by its word; the others are not in it.

    Inputs are followed through operators that act element by element, and through Transposes.
    """
    found: dict[str, int] = {}
    for value in graph.inputs:
        known = value.dtype is not None and value.shape is not None
        words = [None if isinstance(size, int) else size for size in declared(value).shape] if known else []
        queue: list[tuple[ir.Value, list[str | None]]] = [(value, words)] if any(words) else []
        seen = {value}
        for read, along in queue:
            for node, place in read.uses():
                for axis, size in _asked(node, place, len(along)):
                    word = along[axis]
                    if word is not None:
                        found.setdefault(word, size)
                passed = _passed(node, along)
                if passed is not None and node.outputs[0] not in seen:
                    seen.add(node.outputs[0])
                    queue.append((node.outputs[0], passed))
    return found


def _passed(node: ir.Node, along: list[str | None]) -> list[str | None] | None:
    """Return which input's dimension each axis of an operator's result is; None where that is not followed."""
    if is_standard(node, "Transpose"):
        order = node.attributes.get_ints("perm", list(range(len(along)))[::-1])
        return [along[axis] for axis in order] if sorted(order) == list(range(len(along))) else None
    others = [value for value in node.inputs[1:] if value is not None]
    small = all(_rank(value) <= len(along) for value in others)
    return along if has(node, Trait.POINTWISE) and small else None


def _rank(value: ir.Value) -> int:
    return 1 << 10 if value.shape is None else len(value.shape)


def _asked(node: ir.Node, place: int, rank: int) -> _Asked:
    """Yield axis and size that a node's constants ask of an operand."""
    shapes = [_shape(value) for value in node.inputs]
    row = _ROWS.get(kind_of(node)[1]) if is_standard(node, node.op_type) else None
    if row is not None:
        yield from row(node, place, rank, shapes)
    elif has(node, Trait.BROADCASTS):
        for shape in (shape for index, shape in enumerate(shapes) if index != place and shape is not None):
            if len(shape) <= rank:
                yield from ((rank - len(shape) + i, size) for i, size in enumerate(shape) if size not in (None, 1))


def _shape(value: ir.Value | None) -> Sequence[int] | None:
    tensor = constant_tensor(value)
    return None if tensor is None else list(tensor.shape.numpy())


def _channels(axis: int, *, grouped: bool = False) -> Callable[[ir.Node, int, int, list[Sequence[int] | None]], _Asked]:
    """Return what a weight asks that counts the channels of its operand along one of its axes."""

    def row(node: ir.Node, place: int, rank: int, shapes: list[Sequence[int] | None]) -> _Asked:
        weight = shapes[1] if len(shapes) > 1 else None
        if place == 0 and rank > 1 and weight is not None and len(weight) > axis:
            yield 1, weight[axis] * (node.attributes.get_int("group", 1) if grouped else 1)

    return row


def _product(_node: ir.Node, place: int, rank: int, shapes: list[Sequence[int] | None]) -> _Asked:
    other = shapes[1 - place] if len(shapes) > 1 and place < 2 else None
    if other:
        yield (rank - 1, other[-2 if len(other) > 1 else 0]) if place == 0 else (max(rank - 2, 0), other[-1])


def _gemm(node: ir.Node, place: int, rank: int, shapes: list[Sequence[int] | None]) -> _Asked:
    other = shapes[1 - place] if place < 2 else None
    turned = [bool(node.attributes.get_int(name, 0)) for name in ("transA", "transB")]
    if other is not None and len(other) == rank == 2:
        yield (int(not turned[0]), other[int(turned[1])]) if place == 0 else (int(turned[1]), other[int(not turned[0])])


def _trailing(node: ir.Node, place: int, rank: int, shapes: list[Sequence[int] | None]) -> _Asked:
    scale = shapes[1] if len(shapes) > 1 else None
    axis = axis_of(node.attributes.get_int("axis", -1), rank)
    if place == 0 and scale is not None and len(scale) == rank - axis:
        yield from ((axis + i, size) for i, size in enumerate(scale) if size != 1)


def _recurrent(_node: ir.Node, place: int, rank: int, shapes: list[Sequence[int] | None]) -> _Asked:
    weight = shapes[1] if len(shapes) > 1 else None
    if place == 0 and rank == 3 and weight is not None and len(weight) == 3:
        yield 2, weight[2]


_ROWS = {
    "Conv": _channels(1, grouped=True),
    "ConvTranspose": _channels(0),
    "BatchNormalization": _channels(0),
    "InstanceNormalization": _channels(0),
    "LayerNormalization": _trailing,
    "RMSNormalization": _trailing,
    "MatMul": _product,
    "Gemm": _gemm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
"""What each operator's constants ask of the operand at a place."""
