"""Made-up inputs on which one operator is checked: as few values as show what its gauges tell apart.

Along an axis on which an operator does not act, and along which no gauge and no constant varies, three positions are as
good as all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.axes import dims_of, groups
from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.context import RewriteContext
from normdeploy.rewrite.gauge.draw import following_feeds, small_feeds
from normdeploy.rewrite.gauge.edit import Solution
from normdeploy.rewrite.gauge.rules.moves import ACTS

Draw = Callable[[RewriteContext, list[ir.Node], list[ir.Value]], dict[ir.Value, Tensor]]
"""Makes up inputs; leaves out what it has none for."""

_FEW = 3
"""Positions that stand for all that are treated alike."""

_POINTWISE = frozenset({"Add", "Sub", "Sum", "Mean", "Mul", "Div", "Relu", "LeakyRelu", "Abs", "Neg", "Identity", "Max",
                        "Min", "Clip", "Cast"})  # fmt: skip
"""Operators that look at one position at a time, of operands aligned at the last axis."""


def draws(at: Solution) -> tuple[Draw, ...]:
    """Return the ways to make up inputs, in the order in which they are tried."""
    return (_few_feeds(at), _reshape_feeds, _product_feeds(at), small_feeds, following_feeds, _whole_feeds)


def _shapes_that_matter(at: Solution, node: ir.Node) -> list[Sequence[int]] | None:
    """Return what tells positions apart, aligned at the last axis; None for an operator that acts on all of them."""
    if not is_standard(node):
        return None
    moving = node.op_type in ACTS or node.op_type in ("Squeeze", "Unsqueeze")
    if not moving and node.op_type not in _POINTWISE:
        return None
    dims = dims_of(required(node, 0))
    if dims is None:
        return None
    found: list[Sequence[int]] = []
    acts = ACTS[node.op_type](node, len(dims)) if node.op_type in ACTS else None
    if acts is not None:
        if not acts.known or not all(isinstance(dims[axis], int) for axis in acts.axes):
            return None
        found.append([2 if axis in acts.axes else 1 for axis in range(len(dims))])
    read = range(len(node.inputs)) if not moving else (0,) if acts is None else acts.operands
    for index in read:
        value = node.inputs[index]
        tensor = constant_tensor(value)
        gauge = None if value is None else at.ties.of.get(value)
        if tensor is not None:
            found.append(tensor.shape.numpy())
        elif gauge is not None:
            found.append(gauge.cells)
    if not moving:
        found += [at.ties.of[value].cells for value in node.outputs if value in at.ties.of]
    return found


def _few_feeds(at: Solution) -> Draw:
    """Return how to draw few values for an operator that treats the positions along some axes alike."""

    def draw(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
        if len(nodes) > 1 or any(value.shape is None or value.dtype not in FLOATS for value in inputs):
            return {}
        shapes = _shapes_that_matter(at, nodes[0])
        if shapes is None or any(value not in at.ties.of for value in inputs):
            return {}
        rank = max((value.shape.rank() for value in inputs if value.shape is not None), default=0)
        widest = [1] * max(rank, *(len(shape) for shape in shapes))
        for shape in shapes:
            for axis, size in enumerate(reversed(shape)):
                widest[-1 - axis] = max(widest[-1 - axis], size)
        sizes: dict[str, int] = {}
        feeds: dict[ir.Value, Tensor] = {}
        for value in inputs:
            dims = []
            for axis, dim in enumerate(own := value.shape or ()):
                free = widest[axis - len(own)] == 1
                if isinstance(dim, int):
                    dims.append(min(dim, _FEW) if free else dim)
                else:
                    dims.append(sizes.setdefault(dim.value or f"{value.name}.{axis}", 2))
            feeds[value] = context.normal(dims)
        return feeds

    return draw


def _reshape_feeds(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
    """Draw the operand of a Reshape, and a target that fits where it is computed: group by group."""
    node = nodes[0]
    if len(nodes) > 1 or node.op_type != "Reshape" or inputs[0] is not node.inputs[0]:
        return {}
    source, target = dims_of(inputs[0]), dims_of(node.outputs[0])
    if source is None or target is None:
        return {}
    sizes = [dim if isinstance(dim, int) else 2 for dim in source]
    result = [dim if isinstance(dim, int) else 0 for dim in target]
    for inner, outer in groups(source, target):
        have = math.prod(sizes[axis] for axis in inner)
        wanted = math.prod(result[axis] for axis in outer if result[axis])
        loose = [axis for axis in inner if not isinstance(source[axis], int)]
        if loose and have % wanted:
            factor = wanted // math.gcd(have, wanted)
            sizes[loose[0]] *= factor
            have *= factor
        unknown = [axis for axis in outer if not result[axis]]
        for axis in unknown:
            result[axis] = have // wanted if axis == unknown[-1] else 1
    feeds = {inputs[0]: torch.from_numpy(context.rng.random(sizes))}
    if len(inputs) > 1:
        feeds[inputs[1]] = torch.tensor(result, dtype=torch.int64)
    return feeds


def _product_feeds(at: Solution) -> Draw:
    """Return how to draw the operands of a product of two computed values: what is summed over has one size."""

    def draw(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
        node = nodes[0]
        if len(nodes) > 1 or node.op_type != "MatMul" or len(inputs) != 2:
            return {}
        sides = [list(dims_of(required(node, index)) or ()) for index in (0, 1)]
        gauges = [at.ties.of.get(required(node, index)) for index in (0, 1)]
        if any(len(side) < 2 for side in sides) or any(gauge is None for gauge in gauges):
            return {}
        cells = [gauge.cells for gauge in gauges if gauge is not None]

        def size(pairs: Sequence[tuple[int, int]]) -> int:
            """Return one size for an axis of one or both operands."""
            known = [sides[side][axis] for side, axis in pairs]
            static = next((dim for dim in known if isinstance(dim, int) and dim != 1), None)
            varies = any(cells[side][axis] > 1 for side, axis in pairs)
            return 2 if static is None else static if varies else min(static, _FEW)

        summed, rows, columns = size([(0, -1), (1, -2)]), size([(0, -2)]), size([(1, -1)])
        feeds, stacked = {}, {
            axis: size([(index, axis) for index, side in enumerate(sides) if len(side) >= -axis])
            for axis in range(-max(map(len, sides)), -2)
        }  # fmt: skip
        for value, side, last in zip(node.inputs, sides, ((rows, summed), (summed, columns)), strict=True):
            assert value is not None
            dims = [1 if side[axis] == 1 else stacked[axis] for axis in range(-len(side), -2)]
            feeds[value] = context.normal([*dims, *last])
        return feeds

    return draw


def _whole_feeds(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
    """Draw inputs of their static sizes, dynamic ones small."""
    del nodes
    sizes: dict[str, int] = {}
    names = itertools.count()
    feeds: dict[ir.Value, Tensor] = {}
    for value in inputs:
        if value.dtype is not None and value.dtype not in FLOATS:
            feeds[value] = context.random_feed(value, sizes)
            continue
        dims = [
            dim if isinstance(dim, int) else sizes.setdefault(dim.value or f"{value.name}.{next(names)}", 2)
            for dim in value.shape or ()
        ]
        feeds[value] = context.normal(dims)
    return feeds
