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

Along whichever axes, and however often, where all that is computed is computed place by place, as of
``g * torch.ones_like(x)``, ``1 + g.expand_as(x)``, ``sigmoid(g.expand_as(x))``, and the other operand is as large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor, is_constant
from normdeploy.graph.edit import only_reader, take_out, take_out_unread
from normdeploy.graph.operator_inputs import optional, required, shape_of
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.sizes import size_of
from normdeploy.rewrite.unexpand import covers
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
        repeating = [node for node in nodes_of(model) if has(node, Trait.REPEATS) and is_constant(node.inputs[0])]
        found = [chain for node in repeating for usage in node.outputs[0].uses() if (chain := _chain(node, usage.node))]
        if not found:
            return ir.passes.PassResult(model, modified=False)
        shapes = KnownShapes()
        for node in filter(is_standard, nodes_of(model)):
            shapes.visit(node)
        shortened = [chain for chain in found if chain.is_as_large(shapes) or chain.is_as_long(shapes)]
        for chain in shortened:
            chain.shorten()
        if shortened:
            self._evaluate(model)
        return ir.passes.PassResult(model, bool(shortened))


@dataclass(frozen=True)
class _Chain:
    """What is computed of repeated samples.

    Args:
        source: the operator that repeats. nodes: those behind it. reader: the elementwise one that reads the last.
    """

    source: ir.Node
    nodes: tuple[ir.Node, ...]
    reader: ir.Node

    @property
    def _other(self) -> ir.Value | None:
        """The reader's other operand."""
        return self.reader.inputs[int(self.reader.inputs[0] is self.nodes[-1].outputs[0])]

    def is_as_large(self, shapes: KnownShapes) -> bool:
        """Tell whether all is computed place by place, and nowhere larger than the reader's other operand."""
        return all(map(_is_by_place, self.nodes)) and covers(self._other, self.source, shapes)

    def is_as_long(self, shapes: KnownShapes) -> bool:
        """Tell whether the source repeats samples alone, as often as the reader's other operand has samples."""
        if not all(map(_is_by_sample, self.nodes)):
            return False
        small, result, target = required(self.source, 0), self.source.outputs[0], self.source.inputs[1]
        value, other = self.nodes[-1].outputs[0], self._other
        if target is None or result.shape is None or value.shape is None or other is None or other.shape is None:
            return False
        sizes, times = shape_of(small), shapes.elements(target)
        if not sizes or sizes[0] != 1 or not len(result.shape) == len(value.shape) == len(sizes) <= len(other.shape):
            return False
        if tuple(result.shape)[1:] != tuple(sizes)[1:]:
            once = [(1,) if self.source.op_type == "Tile" else (1, size) for size in sizes[1:]]
            if times is None or len(times) != len(sizes):
                return False
            if any(count not in kept for count, kept in zip(times[1:], once, strict=True)):
                return False
        wanted = size_of(other, len(other.shape) - len(value.shape))
        return wanted in (size_of(value, 0), size_of(result, 0), None if times is None else times[0])

    def shorten(self) -> None:
        """Compute of one sample, or of one place of each that are alike."""
        repeated, target = self.source.outputs[0], self.source.inputs[1]
        once = required(self.source, 0)
        sizes: tuple[int | ir.SymbolicDim, ...] = shape_of(once)
        for node in self.nodes:
            result = node.outputs[0]
            constants = [shape_of(value) for value in node.inputs if value is not None and is_constant(value)]
            known = [size for size in sizes if isinstance(size, int)]
            if _is_by_place(node) and len(known) == len(sizes):
                sizes = np.broadcast_shapes(*constants, tuple(known))
            elif result.shape is not None:
                sizes = (1, *result.shape.dims[1:])
            result.shape = ir.Shape(sizes)
        self.nodes[0].replace_input_with(list(self.nodes[0].inputs).index(repeated), once)
        take_out([self.source])
        take_out_unread([target])


def _chain(source: ir.Node, node: ir.Node) -> _Chain | None:
    """Return what is computed of repeated samples from an operator on; None where no elementwise one reads it."""
    value, nodes = source.outputs[0], list[ir.Node]()
    while _is_by_sample(node) or _is_by_place(node):
        nodes.append(node)
        value, reader = node.outputs[0], only_reader(node.outputs[0])
        if reader is None:
            return None
        node = reader
    places = [at for at, read in enumerate(node.inputs) if read is value]
    several = has(node, Trait.BROADCASTS) and len(node.inputs) == 2
    return _Chain(source, tuple(nodes), node) if nodes and several and len(places) == 1 else None


def _computed(node: ir.Node) -> tuple[int, ir.Value] | None:
    """Return the one operand of an operator that is computed, of known rank, with its place; None where it is other."""
    computed = [at for at, value in enumerate(node.inputs) if value is not None and constant_tensor(value) is None]
    if len(computed) != 1 or not is_standard(node) or len(node.outputs) != 1:
        return None
    shown = optional(node, computed[0])
    return None if shown is None or shown.shape is None else (computed[0], shown)


def _is_by_place(node: ir.Node) -> bool:
    """Tell whether an operator reads one computed operand place by place, and constants that are nowhere larger."""
    found = _computed(node)
    if found is None or not has(node, Trait.POINTWISE) or has(node, Trait.PERMUTES):
        return False
    assert found[1].shape is not None
    dims = found[1].shape.dims
    kept = [shape_of(value) for value in node.inputs if value is not None and value is not found[1]]
    within = [len(sizes) <= len(dims) for sizes in kept]
    return all(within) and all(
        size in (1, dim) for sizes in kept for size, dim in zip(sizes[::-1], dims[::-1], strict=False)
    )


def _is_by_sample(node: ir.Node) -> bool:
    """Tell whether an operator reads one computed operand, and treats its samples alike."""
    found = _computed(node)
    if found is None:
        return False
    place, shown = found
    assert shown.shape is not None
    rank, kept = len(shown.shape), [value for value in node.inputs if value is not None and value is not shown]
    if is_standard(node, "MatMul"):
        return place == 0 and rank > 1 and len(shape_of(kept[0])) == 2
    if is_standard(node, "Transpose"):
        return node.attributes.get_ints("perm", (rank,))[0] == 0
    if is_standard(node, "Softmax", "LogSoftmax") or has(node, Trait.BY_ROW):
        return place == 0 and node.attributes.get_int("axis", -1) % max(rank, 1) > 0
    pointwise = has(node, Trait.POINTWISE) and not has(node, Trait.PERMUTES)  # a Dropout may draw for each sample
    return pointwise and all(_is_one_sample(value, rank) for value in kept)


def _is_one_sample(value: ir.Value, rank: int) -> bool:
    """Tell whether a constant is the same for all samples of a value of ``rank`` axes."""
    sizes = shape_of(value)
    return len(sizes) < rank or (len(sizes) == rank and sizes[0] == 1)
