"""Gauges that begin again along an axis whose size only the run tells: heads that were merged with the samples.

(batch, 256) seen as (4 batch, 64) makes of what varies along channels something that begins again with each sample.
Where a elements stand behind the last axis of unknown size before and b behind the last one after, and the gauge has c
cells along the former, element n has the gauge of n modulo a c; so what stands at m along the latter has that of m
modulo lcm(a c, b) / b. So many cells are written out, and :attr:`.Ties.repeated` says along which axis. Seen as
(batch, 256) again, one period is one sample, and nothing begins again.

Movements of one operand and products of computed values pass it on; for any other operator it is one cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from normdeploy.graph.operator_inputs import required
from normdeploy.rewrite.affine.axes import Dims
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.ties import Tie, Ties, known_dims


def leaves_alone(node: ir.Node, ties: Ties, axes: Sequence[int]) -> bool:
    """Tell whether an operator leaves the axis alone along which a gauge begins again, and note where it goes."""
    axis = ties.repeated.get(required(node, 0))
    if axis is None or axis in axes or node.op_type not in _MOVING:
        return False
    if node.op_type == "Transpose":
        rank = len(known_dims(required(node, 0)))
        axis = list(node.attributes.get_ints("perm", range(rank)[::-1])).index(axis)
    ties.repeated |= dict.fromkeys(node.outputs, axis)
    return True


_MOVING = ("Identity", "Transpose", "Slice", "Split")
"""Of one operand, and with its axes, if in another order."""


def written_out(source: Dims, target: Dims, cells: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Return the sizes at which a group's cells are written out, before and after; None where they cannot be.

    Args:
        source, target: dimensions of equal products. cells: of the source.
    """
    if max(cells, default=1) == 1:
        return [1] * len(source), [1] * len(target)
    front, after = (
        max((at for at, dim in enumerate(dims) if not isinstance(dim, int)), default=-1) for dims in (source, target)
    )
    inner, outer = (
        [dim for dim in dims[at + 1 :] if isinstance(dim, int)] for dims, at in ((source, front), (target, after))
    )
    count, rest = math.prod(inner), math.prod(outer)
    if front < 0 and after < 0:
        return (inner, outer) if count == rest else None
    if min(front, after) < 0 or not count * rest or max(cells[:front], default=1) > 1:
        return None
    period = math.lcm(cells[front] * count, rest)
    leading = (*(source[:front] if cells[front] > 1 else ()), *(target[:after] if period > rest else ()))
    if any(dim != 1 for dim in leading):  # it would begin again within another axis
        return None
    return [*[1] * front, period // count, *inner], [*[1] * after, period // rest, *outer]


def multiplied(node: ir.Node, ties: Ties, terms: tuple[str, ...], written: str, gauges: list[Gauge]) -> list[Gauge]:
    """Note along which axis the result's gauge begins again; tie what is summed there, or meets another size."""
    result = node.outputs[0]
    for index, value in enumerate(node.inputs):
        axis = None if value is None else ties.repeated.get(value)
        if value is None or axis is None or gauges[index].cells[axis] == 1:
            continue
        letter, most = terms[index][axis], gauges[index].cells[axis]
        alike = all(
            gauge.cells[at] in (1, most if other is not None and ties.repeated.get(other) == at else 1)
            for other, term, gauge in zip(node.inputs, terms, gauges, strict=True)
            if (at := term.find(letter)) >= 0
        )
        at = written.find(letter)
        if not alike or at < 0 or ties.repeated.setdefault(result, at) != at:
            why = Tie(node, "multiplies what is merged along an axis whose size is not known")
            gauges[index] = ties.along(gauges[index], [axis], why)
    return gauges
