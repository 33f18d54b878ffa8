"""Each changed operator is checked alone: f'(x') = (f(s x + t) - t_y) / s_y for random x', in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError, RewriteError
from normdeploy.graph import FLOATS, constant_tensor, evaluate_region, module_path
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine.axes import dims_of, groups
from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.context import TOLERANCE, RewriteContext
from normdeploy.rewrite.gauge.draw import following_feeds, small_feeds
from normdeploy.rewrite.gauge.edit import Edit, Solution
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.rules.products import product_of

CUBIC_TOLERANCE = 1e-6
"""The reference evaluation of a cubic Resize computes its interpolation weights in float32: they sum to 1 + 1e-7."""


Draw = Callable[[RewriteContext, list[ir.Node], list[ir.Value]], dict[ir.Value, Tensor]]
"""Makes up inputs; leaves out what it has none for."""


class Unchecked(Exception):
    """An operator cannot be evaluated on inputs that are made up.

    Args:
        node: the operator.
    """

    def __init__(self, node: ir.Node) -> None:
        super().__init__(f"{node.op_type} cannot be evaluated here")
        self.node = node


class Check:
    """Evaluates an operator as it is; later, as it became.

    Args:
        context: draws.
        edit: the change, not yet applied.

    Raises:
        Unchecked: the operator cannot be evaluated.
    """

    def __init__(self, context: RewriteContext, edit: Edit) -> None:
        self._inputs: dict[int, Tensor] = {}
        self._expected: list[Tensor] = []
        if not context.check:
            return
        nodes = _region(edit.node)
        read = list(dict.fromkeys(v for v in _read(nodes) if constant_tensor(v) is None))
        last: GraphError | None = None
        for draw in (_few_feeds(edit.at), _reshape_feeds, _product_feeds, small_feeds, following_feeds, _whole_feeds):
            try:
                drawn = draw(context, nodes, read)
                if any(value not in drawn for value in read):
                    continue
                plain = {value: _plain(edit.at, value, drawn[value]) for value in read}
                expected = evaluate_region(nodes, plain, _written(edit.node))
                for value, found in zip(_written(edit.node), expected, strict=True):
                    _require_cells(edit.at.ties.of.get(value), found)
                self._expected = expected
                self._inputs = {read.index(value): tensor for value, tensor in drawn.items() if value in read}
                return
            except GraphError as error:
                last = error
            except ValueError:
                continue  # a gauge that varies along an axis that was cut
        raise Unchecked(edit.node) from last

    def verify(self, context: RewriteContext, edit: Edit) -> None:
        """Evaluate the operator as it became.

        Raises:
            RewriteError: it computes something else.
        """
        if not context.check:
            return
        node, at = edit.node, edit.at
        nodes = _region(node)
        read = list(dict.fromkeys(v for v in _read(nodes) if constant_tensor(v) is None))
        feeds = {value: self._inputs[index] for index, value in enumerate(read)}
        found = evaluate_region(nodes, feeds, _written(node))
        tolerance = CUBIC_TOLERANCE if node.op_type == "Resize" else TOLERANCE
        for value, old, new in zip(_written(node), self._expected, found, strict=True):
            distance = _distance(_gauge_of(at, value, edit), at, old, new)
            if not distance <= tolerance:
                raise RewriteError(
                    f"gauge of {node.op_type}",
                    module_path(node),
                    f"{value.name} differs by {distance:.3g} relative; expected at most {tolerance:g}",
                )


def _region(node: ir.Node) -> list[ir.Node]:
    """Return an operator with what makes its weights from integers, and the bias behind it."""
    before = [weight.quantized for value in node.inputs if (weight := fixed_weight(value)) is not None]
    nodes = [quantized for quantized in dict.fromkeys(before) if quantized is not None]
    product = product_of(node) if node.op_type in ("MatMul", "Gemm") else None
    behind = [] if product is None or product.addend is None or product.addend[0] is node else [product.addend[0]]
    return [*nodes, node, *behind]


def _read(nodes: list[ir.Node]) -> list[ir.Value]:
    made = {output for node in nodes for output in node.outputs}
    return [value for node in nodes for value in node.inputs if value is not None and value not in made]


def _written(node: ir.Node) -> list[ir.Value]:
    last = _region(node)[-1]
    return [value for value in last.outputs if value.name or value.uses() or value.is_graph_output()]


def _gauge_of(at: Solution, value: ir.Value, edit: Edit) -> Gauge | None:
    found = at.ties.of.get(value)
    if found is None and edit.made and value in edit.made[-1].outputs:
        return at.ties.of.get(edit.node.outputs[0])
    return found


def _plain(at: Solution, value: ir.Value, drawn: Tensor) -> Tensor:
    """Return s x' + t."""
    gauge = at.ties.of.get(value)
    if gauge is None or not drawn.is_floating_point() or at.is_identity(gauge):
        return drawn
    scale, shift = (torch.from_numpy(np.array(array)) for array in (at.scale(gauge), at.shift(gauge)))
    _require_cells(gauge, drawn)
    return scale * drawn + shift


def _require_cells(gauge: Gauge | None, drawn: Tensor) -> None:
    """Require that a tensor has the axes along which its gauge varies in full."""
    if gauge is None or not drawn.is_floating_point():
        return
    if any(cell not in (1, size) for cell, size in zip(gauge.cells[::-1], drawn.shape[::-1], strict=False)):
        raise ValueError("the gauge has more cells than what was drawn")


def _distance(gauge: Gauge | None, at: Solution, old: Tensor, new: Tensor) -> float:
    """Return the largest difference of (old - t) / s and new, relative to their size."""
    if old.numel() == 0:
        return 0.0 if old.shape == new.shape else float("inf")
    if old.shape != new.shape:
        return float("inf")
    if not old.is_floating_point() or gauge is None:
        return 0.0 if bool(((old == new) | (torch.isnan(old.double()) & torch.isnan(new.double()))).all()) else 1.0
    scale, shift = (torch.from_numpy(np.array(array)) for array in (at.scale(gauge), at.shift(gauge)))
    expected = (old - shift) / scale
    size = (old / scale).abs() + (shift / scale).abs()
    bad = ~torch.isfinite(expected)
    if bool((bad != ~torch.isfinite(new)).any()):
        return float("inf")
    top = float(size[~bad].max()) if bool((~bad).any()) else 0.0
    difference = float((expected - new)[~bad].abs().max()) if bool((~bad).any()) else 0.0
    return difference / top if top > 0 else difference


def _few_feeds(at: Solution) -> Draw:
    """Return how to draw few values for an operator that looks at one position at a time.

    Along an axis of known size on which no gauge and no constant varies, three positions are as good as all.
    """

    def draw(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
        if len(nodes) > 1 or nodes[0].op_type not in _POINTWISE or nodes[0].domain not in ("", "ai.onnx"):
            return {}
        tensors = [constant_tensor(value) for value in nodes[0].inputs]
        constants = [tensor.shape.numpy() for tensor in tensors if tensor is not None]
        read = [value for value in inputs if value.shape is not None and value.dtype in FLOATS]
        gauges = [at.ties.of.get(value) for value in (*read, *nodes[0].outputs)]
        if len(read) < len(inputs) or any(gauge is None for gauge in gauges):
            return {}
        rank = max(value.shape.rank() for value in read if value.shape is not None)
        widest = [1] * rank
        for shape in (*constants, *(gauge.cells for gauge in gauges if gauge is not None)):
            for axis, size in enumerate(reversed(shape)):
                widest[-1 - axis] = max(widest[-1 - axis], size)
        sizes: dict[str, int] = {}
        feeds: dict[ir.Value, Tensor] = {}
        for value in read:
            dims = []
            own = value.shape
            assert own is not None
            for axis, dim in enumerate(own):
                free = widest[axis - own.rank()] == 1
                if isinstance(dim, int):
                    dims.append(min(dim, 3) if free else dim)
                else:
                    dims.append(sizes.setdefault(dim.value or f"{value.name}.{axis}", 2))
            feeds[value] = torch.from_numpy(context.rng.standard_normal(dims))
        return feeds

    return draw


_POINTWISE = frozenset({"Add", "Sub", "Sum", "Mean", "Mul", "Div", "Relu", "LeakyRelu", "Abs", "Neg", "Identity", "Max",
                        "Min", "Clip", "Cast"})  # fmt: skip
"""Operators that look at one position at a time."""


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
            sizes[loose[0]] *= wanted
            have *= wanted
        unknown = [axis for axis in outer if not result[axis]]
        for axis in unknown:
            result[axis] = have // wanted if axis == unknown[-1] else 1
    feeds = {inputs[0]: torch.from_numpy(context.rng.standard_normal(sizes))}
    if len(inputs) > 1:
        feeds[inputs[1]] = torch.tensor(result, dtype=torch.int64)
    return feeds


def _product_feeds(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
    """Draw the operands of a product of two computed values: what is summed over has one size, by any name."""
    node = nodes[0]
    if len(nodes) > 1 or node.op_type != "MatMul" or len(inputs) != 2:
        return {}
    left, right = (list(dims_of(required(node, index)) or ()) for index in (0, 1))
    if len(left) < 2 or len(right) < 2:
        return {}
    summed = next((size for size in (left[-1], right[-2]) if isinstance(size, int)), 3)
    left[-1] = right[-2] = summed
    for axis in range(-3, -1 - max(len(left), len(right)), -1):
        both = [side for side in (left, right) if len(side) >= -axis]
        known = next((side[axis] for side in both if isinstance(side[axis], int) and side[axis] != 1), 2)
        for side in both:
            side[axis] = side[axis] if isinstance(side[axis], int) else known
    feeds: dict[ir.Value, Tensor] = {}
    for value, dims in zip(node.inputs, (left, right), strict=True):
        assert value is not None
        feeds[value] = torch.from_numpy(
            context.rng.standard_normal([size if isinstance(size, int) else 2 for size in dims])
        )
    return feeds


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
        feeds[value] = torch.from_numpy(context.rng.standard_normal(dims))
    return feeds
