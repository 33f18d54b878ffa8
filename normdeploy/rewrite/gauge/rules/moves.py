"""Operators that only move elements: the operator is run on the identifiers of its operands' cells.

Which cells of the result are which cells of an operand is read off the result; no axis is ever guessed, and indices
that repeat, negative steps or a roll over channels need no case of their own. Axes on which the operator does not act
have size 1 meanwhile. Along an axis on which it does, the identifiers are written out where the size is known; where it
is not, or where what is moved is only known at run time, the cells along that axis are tied, and the rest goes through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.edit import is_read
from normdeploy.graph.operator_inputs import optional, required, shape_of
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.equations.expression_rows import Ints
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Gauge, common, fixed, joined
from normdeploy.rewrite.gauge.numbered_elements import moved
from normdeploy.rewrite.gauge.rules.merged_axis import leaves_alone
from normdeploy.rewrite.gauge.ties import Tie, Ties, known_dims

MANY = 2048
"""Cells of one operand of a Concat beyond which what is joined is tied, where it varies along other axes than the
joined one, too: tokens that are joined with a class token, each with its channels. Channels alone are not counted."""


@dataclass(frozen=True)
class Acts:
    """Where an operator acts.

    Args:
        axes: of its (first) operand.
        known: what it does there is known before run time.
        sizes: sizes to give to axes of which the own ones do not matter; along these cells are tied first.
        operands: the inputs that are moved; the first one only, by default.
    """

    axes: tuple[int, ...] = ()
    known: bool = True
    sizes: dict[int, int] = field(default_factory=dict)
    operands: tuple[int, ...] = (0,)


def _constant(node: ir.Node, *inputs: int) -> bool:
    """Tell whether what decides what is moved is known: those of some inputs that there are."""
    return all(constant64(value) is not None for at in inputs if (value := optional(node, at)) is not None)


def _nowhere(_node: ir.Node, _rank: int) -> Acts:
    return Acts()


def _along_axis(node: ir.Node, rank: int) -> Acts:
    """Split, Gather: along one axis."""
    return Acts((node.attributes.get_int("axis", 0) % rank,), _constant(node, 1))


def _anywhere(node: ir.Node, rank: int) -> Acts:
    return Acts(tuple(range(rank)), _constant(node, 1))


def _slice(node: ir.Node, rank: int) -> Acts:
    listed = optional(node, 3)
    axes = np.arange(rank) if listed is None else constant64(listed)
    if axes is None:
        return Acts(tuple(range(rank)), known=False)
    if listed is None:
        starts = required(node, 1).shape
        axes = axes if starts is None or not isinstance(starts[0], int) else axes[: int(starts[0])]
    return Acts(tuple(int(axis) % rank for axis in axes), _constant(node, 1, 2, 4))


def _gather_elements(node: ir.Node, rank: int) -> Acts:
    """Of computed places those along one axis are chosen; along another one each is its own, where none is left out."""
    if _constant(node, 1):
        return _anywhere(node, rank)
    data, places = (dims_of(required(node, index)) or () for index in (0, 1))
    axis, pairs = node.attributes.get_int("axis", 0) % rank, enumerate(zip(data, places, strict=False))
    kept = {at for at, (size, chosen) in pairs if at != axis and size is not None and size == chosen}
    return Acts(tuple(at for at in range(rank) if at not in kept), known=False)


def _gather_nd(node: ir.Node, rank: int) -> Acts:
    indices = required(node, 1)
    taken = None if indices.shape is None or not len(indices.shape) else indices.shape[-1]
    last = node.attributes.get_int("batch_dims", 0) + taken if isinstance(taken, int) else rank
    return Acts(tuple(range(last)), _constant(node, 1))


def _concat(node: ir.Node, rank: int) -> Acts:
    return Acts((node.attributes.get_int("axis", 0) % rank,), operands=tuple(range(len(node.inputs))))


def _reverse_sequence(node: ir.Node, _rank: int) -> Acts:
    axes = node.attributes.get_int("batch_axis", 1), node.attributes.get_int("time_axis", 0)
    return Acts(axes, _constant(node, 1))


def _compress(node: ir.Node, rank: int) -> Acts:
    return _anywhere(node, rank) if node.attributes.get_int("axis", None) is None else _along_axis(node, rank)


def _tile(node: ir.Node, rank: int) -> Acts:
    repeats = constant64(required(node, 1))
    if repeats is None:
        return Acts(tuple(range(rank)), known=False)
    return Acts(tuple(axis for axis, count in enumerate(repeats) if count != 1))


def pad_widths(node: ir.Node, rank: int) -> list[tuple[int, int]] | None:
    """Return by how much a Pad grows in front of and behind each axis; None where only the run tells."""
    widths = constant64(required(node, 1))
    given = optional(node, 3)
    axes = np.arange(rank) if given is None else constant64(given)
    if widths is None or axes is None:
        return None
    found = [(0, 0)] * rank
    for axis, low, high in zip(axes.reshape(-1), *widths.reshape(2, -1), strict=True):
        found[int(axis) % rank] = int(low), int(high)
    return found


def padded(node: ir.Node, rank: int) -> Acts:
    """Return where a Pad acts: on the axes that get longer or shorter."""
    widths = pad_widths(node, rank)
    if widths is None:
        return Acts(tuple(range(rank)), known=False)
    return Acts(tuple(axis for axis, pair in enumerate(widths) if any(pair)))


def _deep(node: ir.Node, _rank: int) -> Acts:
    block = node.attributes.get_int("blocksize", 1) if node.op_type == "SpaceToDepth" else 1
    return Acts((1, 2, 3), sizes={2: block, 3: block})


ACTS: dict[str, Callable[[ir.Node, int], Acts]] = {
    "Identity": _nowhere,
    "Transpose": _nowhere,
    "Slice": _slice,
    "Split": _along_axis,
    "Gather": _along_axis,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "Tile": _tile,
    "DepthToSpace": _deep,
    "SpaceToDepth": _deep,
    "ReverseSequence": _reverse_sequence,
    "Compress": _compress,
}
"""The operators that are run on identifiers; Pad is, where it repeats what is there (:mod:`.pad`)."""


def tie(node: ir.Node, ties: Ties) -> None:
    """Tie an operator of :data:`ACTS`."""
    follow(node, ties, ACTS[node.op_type])


def follow(node: ir.Node, ties: Ties, acting: Callable[[ir.Node, int], Acts]) -> None:
    """Tie an operator that only moves elements."""
    dims = known_dims(required(node, 0))
    acts = acting(node, len(dims))
    for value in (*filter(is_read, node.outputs), *(required(node, index) for index in acts.operands)):
        known_dims(value)
    operands = _operands(node, ties, acts, repeats=leaves_alone(node, ties, acts.axes))
    sizes = _sizes(node, acts) if acts.known else None
    written = None if sizes is None else _run(node, ties, acts, operands, sizes)
    if written is None:
        what = "by what is known at run time only" if sizes is None else "at more places than are followed"
        why = Tie(node, f"moves along the axis where it varies, {what}")
        written = _tied_along(node, ties, acts, operands, why)
    ties.of.update(written)


def _operands(node: ir.Node, ties: Ties, acts: Acts, *, repeats: bool) -> list[Gauge]:
    computed = [
        ties.operand(node, index, repeats=repeats) for index in acts.operands if constant64(node.inputs[index]) is None
    ]
    wanted = _wanted(computed, acts)
    found: list[Gauge] = []
    for index in acts.operands:
        if constant64(node.inputs[index]) is None:
            cells: Sequence[int] = ()
        elif wanted is not None:  # a constant beside computed values varies as they do, and along what is joined
            cells = [size if axis not in acts.axes else 2 for axis, size in enumerate(wanted)]
        else:  # all that is moved is a constant table: what is selected cannot be told apart
            shape = shape_of(required(node, index))
            cells = [1 if axis in acts.axes else 2 for axis in range(len(shape))]
            if math.prod(int(size) for size, cell in zip(shape, cells, strict=True) if cell > 1) > MOST_CELLS:
                cells = ()
        found.append(ties.operand(node, index, cells, repeats=repeats))
    return found


def _wanted(gauges: Sequence[Gauge], acts: Acts) -> tuple[int, ...] | None:
    """Return the cells that a constant beside computed operands takes; None where there is no such operand."""
    if not gauges:
        return None
    return common(*(gauge.first(acts.axes) for gauge in gauges))


def _sizes(node: ir.Node, acts: Acts) -> list[dict[int, int]] | None:
    """Return the size at which each operand is written out along each axis that is acted on; None if one is unknown."""
    every = [dims_of(required(node, index)) or () for index in acts.operands]
    sizes = [{axis: acts.sizes.get(axis, dims[axis]) for axis in acts.axes} for dims in every]
    known = [{axis: size for axis, size in own.items() if isinstance(size, int)} for own in sizes]
    return known if known == sizes else None


def _run(
    node: ir.Node, ties: Ties, acts: Acts, operands: list[Gauge], sizes: list[dict[int, int]]
) -> dict[ir.Value, Gauge] | None:
    """Run the operator on identifiers; None where they are too many to be written out."""
    if acts.sizes:
        why = Tie(node, "rearranges the axis along which it varies")
        operands = [ties.along(gauge, tuple(acts.sizes), why) for gauge in operands]
    other = common(*(gauge.first(acts.axes) for gauge in operands))
    most = MANY if len(operands) > 1 and math.prod(other) > 1 else 4 * MOST_CELLS
    written: list[Gauge] = []
    for gauge, own in zip(operands, sizes, strict=True):
        full = [own.get(axis, size) for axis, size in enumerate(other)]
        if math.prod(full) > most:
            return None
        written.append(gauge.spread(full))
    shapes = {index: gauge.cells for index, gauge in zip(acts.operands, written, strict=True)}
    results = moved(node, shapes, {}, ties.moved)
    cells = joined(written)
    found: dict[ir.Value, Gauge] = {}
    for value, result in zip(node.outputs, results, strict=False):
        if is_read(value):  # what nobody reads need not agree on anything
            found[value] = settled(node, ties, value, cells, result, acts)
    return found


def settled(node: ir.Node, ties: Ties, value: ir.Value, cells: Gauge, identifiers: Ints, acts: Acts) -> Gauge:
    """Return the gauge of a result from the identifiers in it; cells that share an axis of unknown size are tied."""
    if not identifiers.size:  # nothing is computed, whatever its gauge
        return fixed(identifiers.ndim)
    gauge = cells.picked(identifiers)
    dims = dims_of(value) or ()
    for axis in range(gauge.rank):
        if gauge.cells[axis] == 1:
            continue
        if not gauge.varies(axis):
            gauge = gauge.first([axis])
        elif axis == ties.repeated.get(value):
            continue
        elif axis in acts.sizes or axis >= len(dims) or dims[axis] != gauge.cells[axis]:
            clause = "moves what varies along an axis whose size is not known"
            if axis in acts.sizes:
                clause = "turns channels into positions of one channel, which have to agree"
            gauge = ties.along(gauge, [axis], Tie(node, clause))
    return gauge


def _tied_along(node: ir.Node, ties: Ties, acts: Acts, operands: list[Gauge], why: Tie) -> dict[ir.Value, Gauge]:
    """Tie what lies along the axes that are acted on, in all operands alike; the rest goes through."""
    flat = [ties.along(gauge, acts.axes, why) for gauge in operands]
    cells = common(*flat)
    for gauge in flat[1:]:
        ties.same(gauge, flat[0], why)
    first = flat[0] if len(flat) == 1 else flat[0].spread(cells)
    if len(flat) > 1:  # the widest one stands for all
        first = next((gauge for gauge in flat if gauge.cells == cells), first)
    found: dict[ir.Value, Gauge] = {}
    for value in node.outputs:
        if value.shape is None:
            continue
        extra = value.shape.rank() - first.rank
        if extra:  # Gather, GatherND: the axes of the indices in the place of those that they choose from
            low, high = acts.axes[0], acts.axes[-1] + 1
            shape = (*first.cells[:low], *(1,) * (extra + high - low), *first.cells[high:])
            found[value] = first.each(lambda array, shape=shape: array.reshape(shape))  # type: ignore[misc] # now
        else:
            found[value] = first
    return found
