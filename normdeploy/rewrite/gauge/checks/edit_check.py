"""Each changed operator is checked alone: f'(x') = (f(s x + t) - t_y) / s_y for random x', in float64.

What has to stay what it is no such check sees: an operator without a rule is not written at all. What it reads is asked
for its gauge, whatever was stated and solved (:func:`require_borders`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.errors import GraphError, RewriteError
from normdeploy.graph import constant_tensor, evaluate_region, module_path
from normdeploy.graph.edit import is_read
from normdeploy.graph.operators.pieces import Ahead
from normdeploy.graph.summed_axis import summed_axis
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine.replacement import reads_shape_only
from normdeploy.rewrite.gauge.checks.check_inputs import draws
from normdeploy.rewrite.gauge.checks.rounded_inputs import is_far, noise_of
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.numbered_elements import only_moves, require_moved
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.oriented_product import product_of
from normdeploy.rewrite.gauge.rules.weighed import weighed
from normdeploy.rewrite.gauge.rules.weights import NOTHING, VANISHES
from normdeploy.rewrite.rewrite_context import TOLERANCE, RewriteContext

CUBIC_TOLERANCE = 1e-6
"""The reference evaluation of a cubic Resize computes its interpolation weights in float32: they sum to 1 + 1e-7."""


@dataclass
class Check:
    """What an operator makes of made-up inputs before it is changed.

    Args:
        edit: the change, not yet applied.
        inputs: by place among what the operator reads.
        expected: its results; none where nothing is left to be checked.
        vanishes: something that is read is scaled by 0.
        ahead: products of a large weight that was read for the old operator, and that the new one has still.
        noise: how far the rounding of what was read may move each result (:mod:`.rounded_inputs`).
    """

    edit: Edit
    inputs: dict[int, Tensor] = field(default_factory=dict)
    expected: list[Tensor] = field(default_factory=list)
    noise: list[Floats | None] = field(default_factory=list)
    vanishes: bool = False
    ahead: Ahead | None = None

    def verify(self) -> None:
        """Evaluate the operator as it became.

        Raises:
            RewriteError: it computes something else.
        """
        if not self.expected:
            return
        edit, node, at = self.edit, self.edit.node, self.edit.at
        nodes = _region(node)
        results = _written(nodes)
        feeds = {value: self.inputs[index] for index, value in enumerate(_read(nodes))}
        found = evaluate_region(nodes, feeds, results, ahead=self.ahead)
        tolerance = CUBIC_TOLERANCE if node.op_type == "Resize" else TOLERANCE
        for value, old, new, rounded in zip(results, self.expected, found, self.noise, strict=True):
            distance = _distance(_gauge_of(at, value, edit), at, old, new, rounded, vanishes=self.vanishes)
            if not distance <= tolerance:
                raise RewriteError(
                    f"gauge of {node.op_type}",
                    module_path(node),
                    f"{value.name} differs by {distance:.3g} relative; expected at most {tolerance:g}",
                )


def checks_of(context: RewriteContext, edits: Sequence[Edit]) -> tuple[list[Check], set[ir.Node]]:
    """Evaluate operators as they are, and return their checks, and those that cannot be evaluated on made-up inputs."""
    checks = {edit.node: _check_of(context, edit) for edit in edits}
    made = [check for check in checks.values() if check is not None]
    return made, {node for node, check in checks.items() if check is None}


def _check_of(context: RewriteContext, edit: Edit) -> Check | None:
    if not context.check:
        return Check(edit)
    nodes, at = _region(edit.node), edit.at
    read, results = _read(nodes), _written(nodes)
    for draw in draws(at):
        try:
            drawn = draw(context, nodes, read)
            if any(value not in drawn for value in read):
                continue
            if only_moves(edit):
                require_moved(edit, drawn)
                return Check(edit)
            axes = {value: summed_axis(value) for value in read}
            drawn |= {value: torch.softmax(drawn[value], axis) for value, axis in axes.items() if axis is not None}
            pairs = {value: _left_of_nothing(at, value, drawn[value]) for value in read}
            plain, drawn = {value: old for value, (old, _) in pairs.items()}, {v: new for v, (_, new) in pairs.items()}
            far = any(is_far(at, value) for value in read)  # what rounding hides is looked for position by position
            later = {value: _plain(at, value, drawn[value], moved=False) for value in read}
            ahead = Ahead(later, None if far else context.rng)
            expected = evaluate_region(nodes, plain, results, ahead=ahead)
            for value, found in zip(results, expected, strict=True):
                _require_cells(at.ties.of.get(value), found)
            vanishes = any((np.abs(at.scale(at.ties.of[v])) < VANISHES).any() for v in read if v in at.ties.of)
            noise = noise_of(at, nodes, plain, expected, results)
            if noise is None:
                return None
            return Check(
                edit, {index: drawn[value] for index, value in enumerate(read)}, expected, noise, vanishes, ahead
            )
        except (GraphError, ValueError):
            continue  # it cannot be evaluated on these, or a gauge varies along an axis that was cut
    return None


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


def _plain(at: Solution, value: ir.Value, drawn: Tensor, *, moved: bool = True) -> Tensor:
    """Return s x' + t; or s x' alone, by which the old weight is multiplied in the new product."""
    gauge = at.ties.of.get(value)
    if gauge is None or not drawn.is_floating_point():
        return drawn
    scale, shift = at.scale(gauge), at.shift(gauge) if moved else np.zeros(1)
    if (scale == 1).all() and not shift.any():
        return drawn
    _require_cells(gauge, drawn)
    return torch.from_numpy(np.asarray(scale * drawn.numpy() + shift))  # a scalar's is no array


def _left_of_nothing(at: Solution, value: ir.Value, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and x'; where its scale stands for infinity x is anything, and -t / s is what is left of it."""
    gauge, plain = at.ties.of.get(value), _plain(at, value, drawn)
    if gauge is None or not drawn.is_floating_point():
        return plain, drawn
    endless = np.asarray(np.abs(at.scale(gauge)) * VANISHES > 1)
    if not endless.any():
        return plain, drawn
    there, rest = torch.from_numpy(endless), torch.from_numpy(np.asarray(-at.shift(gauge) / at.scale(gauge)))
    return torch.where(there, drawn, plain), torch.where(there, rest, drawn)


def _require_cells(gauge: Gauge | None, drawn: Tensor) -> None:
    """Require that a tensor has the axes along which its gauge varies in full."""
    if gauge is None or not drawn.is_floating_point():
        return
    if any(cell not in (1, size) for cell, size in zip(gauge.cells[::-1], drawn.shape[::-1], strict=False)):
        raise ValueError("the gauge has more cells than what was drawn")


def _distance(
    gauge: Gauge | None, at: Solution, old: Tensor, new: Tensor, noise: Floats | None, *, vanishes: bool
) -> float:
    """Return the largest difference of (old - t) / s and new, relative to their size.

    Args:
        noise: how much of a difference of the old results is their inputs' rounding.
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
        if noise is not None:
            apart = np.maximum(apart - noise / np.abs(scale), 0.0)
    difference, top = float(apart.max()), float(size.max())
    if not math.isfinite(difference):  # what is not finite has to be so in both
        finite = np.isfinite(expected)
        if (finite != np.isfinite(found)).any():
            return math.inf
        difference, top = (float(array.max(where=finite, initial=0.0)) for array in (apart, size))
    return difference / top if top > 0 else difference


def require_borders(solution: Solution) -> None:
    """Require s = 1 and t = 0 of all that nothing rewrites.

    These are graph inputs and outputs, what operators without a rule, or not asked, read and write, and what the bodies
    of control flow read.

    Args:
        solution: the gauges.

    Raises:
        RewriteError: a gauge is another one.
    """
    for value, reader in _fixed_values(solution):
        gauge = solution.ties.of.get(value)
        if gauge is None or solution.is_identity(gauge):
            continue
        apart = float(max(np.abs(solution.scale(gauge) - 1).max(), np.abs(solution.shift(gauge)).max()))
        if not apart <= TOLERANCE:
            raise RewriteError(
                f"gauge of {'a graph' if reader is None else reader.op_type}",
                "" if reader is None else module_path(reader),
                f"{value.name} is off by {apart:.3g}; it has to stay what it is",
            )


def _fixed_values(solution: Solution) -> Iterator[tuple[ir.Value, ir.Node | None]]:
    """Yield the values whose gauge has to be the identity, with who reads or writes them; None for the graph."""
    graph, asked = solution.ties.graph, set(solution.ties.nodes)
    for value in solution.ties.of:
        if value.is_graph_input() or value.is_graph_output():
            yield value, None
        for usage in value.uses():
            if usage.node.graph is not graph:
                yield value, usage.node
    for node in graph:
        written = rule_of(node) is not None and node in asked
        if not written and node not in solution.ties.parts and not reads_shape_only(node):
            for read in (*node.inputs, *node.outputs):
                if read is not None:
                    yield read, node
