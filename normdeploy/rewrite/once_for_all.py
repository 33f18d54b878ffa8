"""What is computed of a constant repeated for each sample is computed of one: x op f(Expand(c, [n, ..])) = x op f(c).

A table of positions or queries that ``expand(B, -1, -1)`` or ``repeat(B, 1, 1)`` brings to the batch goes through
linear layers and a Softmax at every call, once for each sample (ConViT's scores of positions). It is no constant, and a
map behind it finds no weights. Computed of one sample it is.

Read as computed of one where

1. an Expand or a Tile repeats the first axis of a constant, of size 1 there, and no other;
2. each operator up to the elementwise one reads nothing else that is computed, and treats samples alike: one place at a
   time, a product with a matrix, a Softmax or a norm along other axes, a Transpose that leaves the first axis in front;
3. nothing else reads what lies between;
4. the elementwise operator's other operand is as long along that axis (as in :mod:`.unexpand`), so that it broadcasts.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import only_reader, take_out, take_out_unread
from normdeploy.graph.operator_inputs import optional, shape_of
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.sizes import size_of
from normdeploy.rewrite.weights import EvaluateConstants
from normdeploy.rewrite.weights.shape_computations import KnownShapes


class ComputeOnce(ir.passes.InPlacePass):
    """Take the repetition away in front of what elementwise operators of two operands read, and evaluate the rest.

    Args:
        evaluate: evaluates what depends on constants alone then.
    """

    def __init__(self, evaluate: EvaluateConstants) -> None:
        super().__init__()
        self._evaluate = evaluate

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified, shapes = False, KnownShapes()
        for node in nodes_of(model):
            if is_standard(node):
                shapes.visit(node)
            if has(node, Trait.BROADCASTS) and len(node.inputs) == 2:
                modified |= _shorten(node, 0, shapes) or _shorten(node, 1, shapes)
        if modified:
            self._evaluate(model)
        return ir.passes.PassResult(model, modified)


def _shorten(node: ir.Node, at: int, shapes: KnownShapes) -> bool:
    value, other = node.inputs[at], node.inputs[1 - at]
    if value is None or other is None or other.shape is None or constant_tensor(other) is not None:
        return False
    chain, reader, read = list[tuple[ir.Node, int]](), node, value
    while (source := read.producer()) is not None and not has(source, Trait.REPEATS):
        place = _computed_place(source)
        operand = None if place is None else source.inputs[place]
        if place is None or operand is None or only_reader(read) is not reader:
            return False
        chain.append((source, place))
        reader, read = source, operand
    if source is None or not chain or not _is_as_long(other, value, source, shapes):
        return False
    first, place = chain[-1]
    target = source.inputs[1]
    first.replace_input_with(place, source.inputs[0])
    take_out([source])
    take_out_unread([target])
    for shortened, _ in chain:
        result = shortened.outputs[0]
        if result.shape is not None:
            result.shape = ir.Shape([1, *result.shape.dims[1:]])
    return True


def _computed_place(node: ir.Node) -> int | None:
    """Return which operand of an operator that treats samples alike is computed; None for any other operator."""
    computed = [at for at, value in enumerate(node.inputs) if value is not None and constant_tensor(value) is None]
    if len(computed) != 1 or not is_standard(node):
        return None
    (place,) = computed
    shown = optional(node, place)
    if shown is None or shown.shape is None or len(node.outputs) != 1:
        return None
    rank, kept = len(shown.shape), [value for value in node.inputs if value is not None and value is not shown]
    if is_standard(node, "MatMul"):
        alike = place == 0 and rank > 1 and len(shape_of(kept[0])) == 2
    elif is_standard(node, "Transpose"):
        alike = node.attributes.get_ints("perm", (rank,))[0] == 0
    elif is_standard(node, "Softmax", "LogSoftmax") or has(node, Trait.BY_ROW):
        alike = place == 0 and node.attributes.get_int("axis", -1) % max(rank, 1) > 0
    else:
        alike = has(node, Trait.POINTWISE) and not has(node, Trait.PERMUTES)  # a Dropout may draw for each sample
        alike = alike and all(_is_one_sample(value, rank) for value in kept)
    return place if alike else None


def _is_one_sample(value: ir.Value, rank: int) -> bool:
    """Tell whether a constant is the same for all samples of a value of ``rank`` axes."""
    sizes = shape_of(value)
    return len(sizes) < rank or (len(sizes) == rank and sizes[0] == 1)


def _is_as_long(other: ir.Value, value: ir.Value, source: ir.Node, shapes: KnownShapes) -> bool:
    """Tell whether an operator repeats samples of a constant alone, as often as another value has samples."""
    small, result, target = source.inputs[0], source.outputs[0], source.inputs[1]
    if small is None or target is None or constant_tensor(small) is None or result.shape is None:
        return False
    if value.shape is None or other.shape is None or len(value.shape) > len(other.shape):
        return False
    sizes, times = shape_of(small), shapes.elements(target)
    if not sizes or sizes[0] != 1 or len(result.shape) != len(sizes):
        return False
    kept = tuple(result.shape)[1:] == tuple(sizes)[1:]
    if not kept and (times is None or len(times) != len(sizes)):
        return False
    if not kept and any(
        count not in ((1,) if source.op_type == "Tile" else (1, size))
        for count, size in zip((times or ())[1:], sizes[1:], strict=True)
    ):
        return False
    wanted = size_of(other, len(other.shape) - len(value.shape))
    return wanted in (size_of(value, 0), size_of(result, 0), None if times is None else times[0])
