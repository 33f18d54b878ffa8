"""An Einsum of data with a constant is a product with a matrix, and is written as one.

Letters of the equation, by what has them: K data and weight, summed over; B data and weight, kept; N the weight and the
result; D the data and the result. Then::

    y[D, B, N] = sum_K x[D, B, K] w[B, K, N]

which is, in the order of the data's letters, one of

1. no K, no N: a Mul by w[B], brought to the data's order;
2. one K, one N in its place in the result: no B and both in second place, a convolution of one tap over two or three
   axes, but for float64, of which onnxruntime's CPU has Einsum and MatMul and no convolution; in the last place but
   one, in front of one of D, MatMul of w[B, N, K] with x[.., K, d], whose axes may be empty as a convolution's may not;
3. otherwise MatMul of x[.., d, K] with the stack w[.., K, N] over B, d one of D; several K or N are one by a Reshape.
   Without N there is one column, which a Squeeze takes away. Transposes stand where the letters' order asks for
   them: what onnxruntime's Einsum does inside.

What folds into and out of those operators needs no rule for Einsum then. One that would be several operators becomes
them only where an affine map reaches it: a runtime's Einsum does inside what they do.

Left as they are: a letter twice in one operand, or summed over in one alone; N without K; B without D (nothing to stand
for rows); and sizes of K or B that are not certainly equal in both, for an Einsum repeats
along an axis of size 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Ints
from normdeploy.graph import is_constant, module_path
from normdeploy.graph.edit import put_constant, share_names, standing_for
from normdeploy.graph.einsum_letters import letters_of
from normdeploy.graph.operator_inputs import required, shape_of
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.affine.constant import derive
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.gauge.reached import Reached
from normdeploy.rewrite.rewrite_context import RewriteContext, RewritePass


class LowerEinsum(RewritePass):
    """Write each Einsum of data with a constant as Mul, Conv or MatMul.

    Args:
        context: makes the check of each.
        several: those that become several operators, where affine maps reach them; by default the others.
    """

    def __init__(self, context: RewriteContext, *, several: bool = False) -> None:
        super().__init__(context)
        self._several = several

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        modified = False
        share_names(model)
        for graph in graphs_of(model):
            found = {node: read(node) for node in graph if is_standard(node, "Einsum")}
            reached = Reached(graph).nodes if self._several and any(found.values()) else set()
            for node, equation in found.items():
                if equation is not None and (node in reached if self._several else equation.is_short):
                    _write(Region(graph), node, equation, self.context)
                    modified = True
        return ir.passes.PassResult(model, modified)


@dataclass(frozen=True)
class Equation:
    """An equation of data and a weight.

    Args:
        at: the place of the data among the two operands.
        data, weight, result: their letters.
        sizes: of the weight's letters.
        convolves: whether the runtime has a convolution for its type.
    """

    at: int
    data: str
    weight: str
    result: str
    sizes: dict[str, int]
    convolves: bool

    @property
    def summed(self) -> str:
        """K, in the data's order."""
        return "".join(letter for letter in self.data if letter not in self.result)

    @property
    def stacked(self) -> str:
        """B, in the data's order."""
        return "".join(letter for letter in self.data if letter in self.result and letter in self.weight)

    @property
    def written(self) -> str:
        """N, in the result's order."""
        return "".join(letter for letter in self.result if letter not in self.data)

    @property
    def rows(self) -> str:
        """D, in the data's order."""
        return "".join(letter for letter in self.data if letter not in self.weight)

    @property
    def turned(self) -> str | None:
        """The data's letters with N in the place of K, where both are one."""
        one = len(self.summed) == len(self.written) == 1
        return self.data.replace(self.summed, self.written) if one else None

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution of one tap."""
        shaped = len(self.result) in (4, 5) and self.result[1] == self.written
        return self.convolves and self.turned == self.result and shaped and not self.stacked

    @property
    def turns_product(self) -> bool:
        """Whether it is a MatMul of the weight with the data, in this order."""
        return self.turned == self.result and self.result[-2:-1] == self.written and self.result[-1] in self.rows

    @property
    def is_short(self) -> bool:
        """Whether it is a map, or one operator."""
        if not self.summed:
            return True
        in_place = self.turned == self.result and self.data[-1] == self.summed and self.data[-2] in self.rows
        return in_place or self.turns_product or self.is_convolution


def read(node: ir.Node) -> Equation | None:
    """Return what an Einsum of data and a constant says; None where it is left as it is."""
    if len(node.inputs) != 2 or sum(map(is_constant, node.inputs)) != 1:
        return None
    at = 0 if is_constant(node.inputs[1]) else 1
    x, shape = required(node, at), shape_of(required(node, 1 - at))
    ranks = (0 if x.shape is None else len(x.shape), len(shape))
    letters = letters_of(node, ranks if at == 0 else ranks[::-1])
    if x.shape is None or letters is None:
        return None
    (data, weight), result = letters[0][:: 1 - 2 * at], letters[1]
    if set(weight) - set(data) - set(result):
        return None
    convolves = x.dtype is not ir.DataType.DOUBLE
    equation = Equation(at, data, weight, result, dict(zip(weight, shape, strict=True)), convolves)
    if any(size != equation.sizes.get(letter, size) for letter, size in zip(data, x.shape, strict=True)):
        return None
    if not set(equation.summed) <= set(weight) or 0 in shape:
        return None
    plain = not equation.summed and not equation.written
    return equation if plain or (equation.summed and (equation.rows or not equation.stacked)) else None


class _Chain:
    """Operators one behind another, each with the letters of its result."""

    def __init__(self, region: Region, node: ir.Node, equation: Equation) -> None:
        self.region, self.node, self.sizes = region, node, dict[str, int | ir.SymbolicDim](equation.sizes)
        self.value, self.letters = required(node, equation.at), list(equation.data)
        assert self.value.shape is not None
        self.sizes |= dict(zip(equation.data, self.value.shape, strict=True))
        self._last: ir.Node | None = None

    def add(
        self,
        op_type: str,
        others: Sequence[ir.Value],
        letters: Sequence[str],
        *,
        reverse: bool = False,
        **attributes: list[int],
    ) -> None:
        """Put an operator behind; one of its letters may stand for the product of several axes.

        Args:
            op_type: the operator.
            others: what it reads besides the value so far.
            letters: of its result.
            reverse: it reads the value so far behind the others.
            attributes: lists of integers.
        """
        sizes = [self.sizes[item] if len(item) == 1 else self._product(item) for item in letters]
        read = [*others, self.value] if reverse else [self.value, *others]
        made = standing_for(self.node, op_type, read, [ir.AttrInt64s(name, at) for name, at in attributes.items()])
        made.outputs[0].shape = ir.Shape(sizes)
        self.region.adopt(made, after=self._last or self.node)
        self._last, self.value, self.letters = made, made.outputs[0], list(letters)

    def order(self, letters: Sequence[str]) -> None:
        """Bring the axes into an order."""
        if self.letters != list(letters):
            self.add("Transpose", [], letters, perm=[self.letters.index(letter) for letter in letters])

    def view(self, letters: Sequence[str]) -> None:
        """Take trailing axes together, or apart: those in front keep their sizes."""
        if self.letters == list(letters):
            return
        kept = next(at for at, item in enumerate(self.letters) if at == len(letters) or item != letters[at])
        target = np.array([0] * kept + [self._product(item) for item in letters[kept:]], np.int64)
        if kept == len(letters):  # one column: a vector for a weight
            self.add("Squeeze", [self._integers(np.array([kept], np.int64), "axes")], letters)
        else:
            self.add("Reshape", [self._integers(target, "shape")], letters)

    def _integers(self, array: Ints, use: str) -> ir.Value:
        return put_constant(self.region.graph, array, f"{self.node.name or 'einsum'}.{use}")

    def _product(self, letters: str) -> int:
        sizes = [self.sizes[letter] for letter in letters]
        assert all(isinstance(size, int) for size in sizes)  # letters of the weight
        return math.prod(size for size in sizes if isinstance(size, int))


def _write(region: Region, node: ir.Node, equation: Equation, context: RewriteContext) -> None:
    chain = _Chain(region, node, equation)
    summed, written, result = equation.summed, equation.written, equation.result
    if not summed:
        weight = _weight(
            region, node, equation, [letter if letter in equation.weight else "" for letter in equation.data]
        )
        chain.add("Mul", [weight], list(equation.data))
    elif equation.turns_product:
        weight = _stack(region, node, equation, result[:-2], [written, summed])
        chain.add("MatMul", [weight], list(result), reverse=True)
    elif equation.is_convolution:
        weight = _weight(region, node, equation, [written, summed, *[""] * (len(result) - 2)])
        chain.add("Conv", [weight], list(result))
    else:
        row = equation.rows[-1:]
        kept = "".join(letter for letter in equation.data if letter not in summed and letter != row) + row
        chain.order(kept + summed)
        chain.view([*kept, summed])
        chain.add("MatMul", [_stack(region, node, equation, kept[:-1], [summed, written])], [*kept, written])
        chain.view(list(kept + written))
    chain.order(result)
    region.before.append(node)
    region.same(node.outputs[0], chain.value)
    region.commit(context, "Einsum as a product", module_path(node), {})


def _stack(region: Region, node: ir.Node, equation: Equation, kept: str, matrix: list[str]) -> ir.Value:
    """Return the weight as matrices, stacked over those of some letters of the data that it has itself."""
    stack = [letter if letter in equation.stacked else "" for letter in kept]
    first = next((at for at, letter in enumerate(stack) if letter), len(stack))
    return _weight(region, node, equation, [*stack[first:], *matrix])


def _weight(region: Region, node: ir.Node, equation: Equation, axes: list[str]) -> ir.Value:
    """Return the weight with other axes: each has the product of some of its letters, or size 1 for none."""
    order = [equation.weight.index(letter) for letter in "".join(axes)]
    shape = [math.prod(equation.sizes[letter] for letter in axis) for axis in axes]
    value = required(node, 1 - equation.at)
    return derive(region, value, lambda array: array.transpose(order).reshape(shape), shape)
