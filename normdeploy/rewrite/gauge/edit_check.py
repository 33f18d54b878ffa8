"""Each changed operator is checked alone: f'(x') = (f(s x + t) - t_y) / s_y for random x', in float64."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError, RewriteError
from normdeploy.graph import constant_tensor, evaluate_region, module_path
from normdeploy.graph.edit import is_read
from normdeploy.graph.summed_axis import summed_axis
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.gauge.check_inputs import draws
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.numbered_elements import only_moves, require_moved
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.gauge.rules.oriented_product import product_of
from normdeploy.rewrite.gauge.rules.weighed import weighed
from normdeploy.rewrite.gauge.rules.weights import NOTHING, VANISHES
from normdeploy.rewrite.rewrite_context import TOLERANCE, RewriteContext

CUBIC_TOLERANCE = 1e-6
"""The reference evaluation of a cubic Resize computes its interpolation weights in float32: they sum to 1 + 1e-7."""


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
        self._vanishes = False
        if not context.check:
            return
        nodes = _region(edit.node)
        read, results = _read(nodes), _written(nodes)
        last: GraphError | None = None
        for draw in draws(edit.at):
            try:
                drawn = draw(context, nodes, read)
                if any(value not in drawn for value in read):
                    continue
                if only_moves(edit):
                    require_moved(edit, drawn)
                    return
                axes = {value: summed_axis(value) for value in read}
                drawn |= {value: torch.softmax(drawn[value], axis) for value, axis in axes.items() if axis is not None}
                plain = {value: _plain(edit.at, value, drawn[value]) for value in read}
                expected = evaluate_region(nodes, plain, results)
                gauges = (edit.at.ties.of[value] for value in read if value in edit.at.ties.of)
                self._vanishes = any((np.abs(edit.at.scale(gauge)) < VANISHES).any() for gauge in gauges)
                for value, found in zip(results, expected, strict=True):
                    _require_cells(edit.at.ties.of.get(value), found)
                self._expected = expected
                self._inputs = {read.index(value): tensor for value, tensor in drawn.items() if value in read}
                return
            except GraphError as error:
                last = error
            except ValueError:
                continue  # a gauge that varies along an axis that was cut
        raise Unchecked(edit.node) from last

    def verify(self, edit: Edit) -> None:
        """Evaluate the operator as it became.

        Raises:
            RewriteError: it computes something else.
        """
        if not self._expected:  # nothing is checked, or was when it could be
            return
        node, at = edit.node, edit.at
        nodes = _region(node)
        results = _written(nodes)
        feeds = {value: self._inputs[index] for index, value in enumerate(_read(nodes))}
        found = evaluate_region(nodes, feeds, results)
        tolerance = CUBIC_TOLERANCE if node.op_type == "Resize" else TOLERANCE
        for value, old, new in zip(results, self._expected, found, strict=True):
            distance = _distance(_gauge_of(at, value, edit), at, old, new, vanishes=self._vanishes)
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
    product = product_of(node)
    behind = [] if product is None or product.addend is None or product.addend[0] is node else [product.addend[0]]
    average = weighed(node)
    behind += [] if average is None else [average.total]
    return [*nodes, node, *behind]


def _read(nodes: list[ir.Node]) -> list[ir.Value]:
    """Return what a region reads from outside, constants left out."""
    made = {output for node in nodes for output in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in made)
    return [value for value in read if constant_tensor(value) is None]


def _written(nodes: list[ir.Node]) -> list[ir.Value]:
    return [value for value in nodes[-1].outputs if is_read(value)]


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
    _require_cells(gauge, drawn)
    return torch.from_numpy(np.asarray(at.scale(gauge) * drawn.numpy() + at.shift(gauge)))  # a scalar's is no array


def _require_cells(gauge: Gauge | None, drawn: Tensor) -> None:
    """Require that a tensor has the axes along which its gauge varies in full."""
    if gauge is None or not drawn.is_floating_point():
        return
    if any(cell not in (1, size) for cell, size in zip(gauge.cells[::-1], drawn.shape[::-1], strict=False)):
        raise ValueError("the gauge has more cells than what was drawn")


def _distance(gauge: Gauge | None, at: Solution, old: Tensor, new: Tensor, *, vanishes: bool) -> float:
    """Return the largest difference of (old - t) / s and new, relative to their size.

    Args:
        vanishes: something that is read is scaled by 0: what stands for 0 in the old result is 0 in the new one.
    """
    if old.numel() == 0:
        return 0.0 if old.shape == new.shape else math.inf
    if old.shape != new.shape:
        return math.inf
    if not old.is_floating_point() or gauge is None:
        return 0.0 if bool(((old == new) | (torch.isnan(old.double()) & torch.isnan(new.double()))).all()) else 1.0
    scale, shift = at.scale(gauge), at.shift(gauge)
    expected, found = old.numpy(), new.numpy()
    size = np.abs(expected)
    with np.errstate(all="ignore"):  # what is not finite is looked at below
        if shift.any():
            expected, size = expected - shift, size + np.abs(shift)
        if (scale != 1).any():
            expected, size = expected / scale, size / np.abs(scale)
            nought = (np.abs(scale) * VANISHES > 1) & (np.abs(old.numpy() / scale) < NOTHING)
            if nought.any():  # divided by what stands for infinity, nothing is left of the value
                rest = shift / scale
                expected, size = np.where(nought, -rest, expected), np.where(nought, np.abs(rest), size)
        if vanishes:
            expected = np.where(np.abs(expected) < VANISHES, 0.0, expected)
            size = np.where(size < VANISHES, 0.0, size)
        apart = np.abs(expected - found)
    difference, top = float(apart.max()), float(size.max())
    if not math.isfinite(difference):  # what is not finite has to be so in both
        finite = np.isfinite(expected)
        if (finite != np.isfinite(found)).any():
            return math.inf
        difference, top = (float(array.max(where=finite, initial=0.0)) for array in (apart, size))
    return difference / top if top > 0 else difference
