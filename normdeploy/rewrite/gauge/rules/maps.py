"""An affine map y = a x + b that stays is itself an absorber: a' = a s_x / s_y, b' = (a t_x + b - t_y) / s_y.

It disappears exactly where s_y = a s_x and t_y = a t_x + b, for then y' = x'. Where a is 0, it is taken for
:data:`VANISHING` meanwhile: the row of weights that writes x' vanishes (:data:`.weights.VANISHES`), and what else reads
x would have to multiply by its inverse, which no type holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import compress
from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import affine_map
from normdeploy.rewrite.affine.constant import storable
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.affine.operators_of_map import passes, passes_now
from normdeploy.rewrite.gauge.equations.expression_rows import Rows
from normdeploy.rewrite.gauge.equations.system import Conflict
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Gauge
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused
from normdeploy.rewrite.gauge.rules.weights import VANISHES, divided, require_no_zero_undone
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed

VANISHING = 2.0**-200
"""What a scale of 0 counts as while it moves."""


def movable(mapping: AffineMap) -> Floats:
    """Return a map's scale without zeros."""
    return np.where(mapping.scale == 0, VANISHING, mapping.scale)


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Give the result of an affine map unknowns of its own."""
    gauge, mapping = ties.operand(node, 0), affine_map(node)
    cells = np.broadcast_shapes(gauge.cells, mapping.scale.shape, mapping.shift.shape)
    if math.prod(cells) > MOST_CELLS:  # decays of each channel along a sequence: minutes, and no weights take them
        raise Unfollowed(f"has numbers of its own at more than {MOST_CELLS:,} places, which are not followed")
    return ties.fresh(cells, slack=True)


def dissolve(nodes: Sequence[ir.Node], ties: Ties, *, scale: bool = True, shift: bool = True) -> Conflict | None:
    """State that maps disappear, all of them, or a half of each."""
    whys = [Tie(node) for node in nodes]
    rows = [_rows(node, ties) for node in nodes]
    conflict = ties.scales.add_all([scales for scales, _ in rows], whys) if scale else None
    return ties.shifts.add_all([shifts for _, shifts in rows], whys) if shift and conflict is None else conflict


def _rows(node: ir.Node, ties: Ties) -> tuple[Rows, Rows]:
    """Return the equations by which a map disappears, of scales and of shifts; made once, since it is asked again."""
    if node not in ties.leaving:
        source, result, mapping = ties.operand(node, 0), ties.of[node.outputs[0]], affine_map(node)
        factor = movable(mapping)
        ties.leaving[node] = (
            ties.scale_rows(result, source, factor),
            ties.shift_rows(result, source, factor, mapping.shift),
        )
    return ties.leaving[node]


def unburdened(node: ir.Node, ties: Ties) -> bool:
    """State that what a map reads carries no shift; tell whether that can be."""
    source = ties.operand(node, 0)
    rows = Rows.of((source.shift_of, source.factor), constant=0.0)
    return ties.shifts.add(rows, Tie(node)) is None


def carried(edit: Edit) -> AffineMap:
    """Return what a map becomes under the gauges around it."""
    mapping = affine_map(edit.node)
    (s_x, t_x), (s_y, t_y) = edit.operand(0), edit.result()
    with np.errstate(over="ignore", invalid="ignore"):
        scale = mapping.scale * s_x / s_y
        shift = divided(mapping.scale * t_x + mapping.shift - t_y, s_y)
    size = (np.abs(mapping.scale * t_x) + np.abs(mapping.shift) + np.abs(t_y)) / np.abs(s_y)
    without = [half for half in ("scale", "shift") if (edit.node, half) in edit.at.ties.halved]
    scale = np.ones_like(scale) if "scale" in without else scale  # what was solved so differs by its rounding
    shift = np.zeros_like(shift) if "shift" in without else np.where(np.abs(shift) <= 1e-14 * size, 0.0, shift)
    scale = np.where(np.abs(scale - 1) <= 1e-14, 1.0, np.where(np.abs(scale) < VANISHES, 0.0, scale))
    return AffineMap(compress(scale), compress(shift))


def write(edit: Edit) -> None:
    """Write a' and b'."""
    node, new, old = edit.node, carried(edit), affine_map(edit.node)
    if new.same(old):
        return
    dtype = node.outputs[0].dtype
    assert dtype is not None
    require_no_zero_undone(node, new.scale, new.shift)
    if not storable(dtype, new.scale, new.shift):
        raise Refused(node, f"composed with {describe(node)} it overflows")
    edit.absorbs = True
    edit.composed()
    more = max(passes(node, new) - passes_now(node), 0)
    edit.cost += more * bytes_moved.pass_bytes(node.outputs[0])
    for index, array in ((1, new.scale), (2, new.shift)):
        value = node.inputs[index]
        assert value is not None
        compute = partial(np.asarray, array)
        edit.read(index, edit.constant(compute, array.shape, dtype, name=str(value.name), succeeds=value))
