"""Operators that only move elements: the operator is run on the identifiers of its operands' cells.

Which cells of the result are which cells of an operand is read off the result; no axis is ever guessed, and indices that
repeat, negative steps or a roll over channels need no case of their own. Axes on which the operator does not act have
size 1 meanwhile. Along an axis on which it does, the identifiers are written out where the size is known; where it is
not, or where what is moved is only known at run time, the cells along that axis are tied, and the rest goes through.

Reshape and its kin act on all axes. They keep the row-major order, so dimensions fall into consecutive groups of
certainly equal products (:mod:`normdeploy.rewrite.affine.axes`); identifiers are reshaped within each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.graph import constant64, evaluate_node
from normdeploy.rewrite.affine.axes import Dims, dims_of, groups
from normdeploy.rewrite.affine.constant import integer, ints, optional, required, string
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.gauge.edit import Edit, Refused
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Gauge, Tie, Ties, common
from normdeploy.rewrite.gauge.rules.weights import require_small
from normdeploy.rewrite.gauge.system import Ints


MANY = 8192
"""Cells of one operand of a Concat beyond which what is joined is tied: tokens that are joined with a class token."""


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


def _nowhere(node: ir.Node, rank: int) -> Acts:
    return Acts()


def _slice(node: ir.Node, rank: int) -> Acts:
    listed = optional(node, 3)
    axes = np.arange(rank) if listed is None else constant64(listed)
    if axes is None:
        return Acts(tuple(range(rank)), known=False)
    if listed is None:
        starts = required(node, 1).shape
        axes = axes if starts is None or not isinstance(starts[0], int) else axes[: int(starts[0])]
    known = all(constant64(optional(node, at)) is not None for at in (1, 2, 4) if optional(node, at) is not None)
    return Acts(tuple(int(axis) % rank for axis in axes), known)


def _split(node: ir.Node, rank: int) -> Acts:
    sizes = optional(node, 1)
    return Acts((integer(node, "axis", 0) % rank,), sizes is None or constant64(sizes) is not None)


def _gather(node: ir.Node, rank: int) -> Acts:
    return Acts((integer(node, "axis", 0) % rank,), constant64(required(node, 1)) is not None)


def _concat(node: ir.Node, rank: int) -> Acts:
    return Acts((integer(node, "axis", 0) % rank,), operands=tuple(range(len(node.inputs))))


def _tile(node: ir.Node, rank: int) -> Acts:
    repeats = constant64(required(node, 1))
    if repeats is None:
        return Acts(tuple(range(rank)), known=False)
    return Acts(tuple(axis for axis, count in enumerate(repeats) if count != 1))


def _pad(node: ir.Node, rank: int) -> Acts:
    widths = constant64(required(node, 1))
    given = optional(node, 3)
    axes = np.arange(rank) if given is None else constant64(given)
    if widths is None or axes is None:
        return Acts(tuple(range(rank)), known=False)
    before, after = widths.reshape(2, -1)
    moved = [int(axis) % rank for axis, low, high in zip(axes.reshape(-1), before, after, strict=True) if low or high]
    return Acts(tuple(moved))


def _deep(node: ir.Node, rank: int) -> Acts:
    block = integer(node, "blocksize", 1) if node.op_type == "SpaceToDepth" else 1
    return Acts((1, 2, 3), sizes={2: block, 3: block})


ACTS: dict[str, Callable[[ir.Node, int], Acts]] = {
    "Identity": _nowhere,
    "Transpose": _nowhere,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Concat": _concat,
    "Tile": _tile,
    "Pad": _pad,
    "DepthToSpace": _deep,
    "SpaceToDepth": _deep,
}
"""The operators that are run on identifiers."""

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def tie(node: ir.Node, ties: Ties) -> bool:
    """Tie an operator of :data:`ACTS`; False where it cannot be followed at all."""
    dims = dims_of(required(node, 0))
    if dims is None or any(value.shape is None for value in node.outputs if value.uses() or value.is_graph_output()):
        return False
    acts = ACTS[node.op_type](node, len(dims))
    if not acts.known and node.op_type == "Slice" and optional(node, 3) is not None and len(acts.axes) == len(dims):
        return _all_tied(node, ties, acts)
    operands = _operands(node, ties, acts)
    if operands is None:
        return False
    sizes = _sizes(node, acts, dims)
    written = None if not acts.known else _run(node, ties, acts, operands, sizes)
    if written is None:
        return _tied_along(node, ties, acts, operands)
    for value, gauge in zip(node.outputs, written, strict=False):
        ties.of[value] = gauge
    return True


def _operands(node: ir.Node, ties: Ties, acts: Acts) -> list[Gauge] | None:
    computed = [ties.operand(node, index) for index in acts.operands if constant64(node.inputs[index]) is None]
    if any(gauge is None for gauge in computed):
        return None
    known = [gauge for gauge in computed if gauge is not None]
    wanted = _wanted(known, acts)
    found: list[Gauge] = []
    for index in acts.operands:
        shape = required(node, index).shape
        assert shape is not None
        if constant64(node.inputs[index]) is None:
            cells: Sequence[int] = ()
        elif wanted is not None:  # a constant beside computed values varies as they do, and along what is joined
            cells = [size if axis not in acts.axes else 2 for axis, size in enumerate(wanted)]
        else:  # all that is moved is a constant table: what is selected cannot be told apart
            cells = [1 if axis in acts.axes else 2 for axis in range(len(shape))]
            if math.prod(int(size) for size, cell in zip(shape.numpy(), cells, strict=True) if cell > 1) > MOST_CELLS:
                cells = ()
        gauge = ties.operand(node, index, cells)
        if gauge is None:
            return None
        found.append(gauge)
    return found


def _wanted(gauges: Sequence[Gauge], acts: Acts) -> tuple[int, ...] | None:
    """Return the cells that a constant beside computed operands takes; None where there is no such operand."""
    if not gauges:
        return None
    return common(*(gauge.each(lambda array: _first_of(array, acts.axes)) for gauge in gauges))


def _first_of(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:  # type: ignore[type-arg] # of ids and numbers
    return array[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(array.ndim))]


def _sizes(node: ir.Node, acts: Acts, dims: Dims) -> dict[int, int] | None:
    """Return the size at which identifiers are written out along each axis that is acted on; None if one is unknown."""
    sizes = {axis: acts.sizes.get(axis, dims[axis]) for axis in acts.axes}
    known = {axis: size for axis, size in sizes.items() if isinstance(size, int)}
    return known if len(known) == len(sizes) else None


def _run(
    node: ir.Node, ties: Ties, acts: Acts, operands: list[Gauge], sizes: dict[int, int] | None
) -> list[Gauge] | None:
    """Run the operator on identifiers; None where they cannot be written out."""
    if sizes is None:
        return None
    if acts.sizes:
        why = Tie(node, "rearranges the axis along which it varies")
        operands = [ties.along(gauge, tuple(acts.sizes), why) for gauge in operands]
    other = [1] * operands[0].rank
    for gauge in operands:
        other = [max(mine, theirs) for mine, theirs in zip(other, gauge.cells, strict=True)]
    inputs: list[torch.Tensor | None] = []
    start = 0
    written: list[Gauge] = []
    for at, index in enumerate(acts.operands):
        gauge = operands[at]
        dims = dims_of(required(node, index)) or ()
        full = list(other)
        for axis in acts.axes:
            own = acts.sizes.get(axis, dims[axis])
            if not isinstance(own, int):
                return None
            full[axis] = own
        if math.prod(full) > (MANY if len(operands) > 1 else 4 * MOST_CELLS):
            return None
        gauge = gauge.spread(full)
        written.append(gauge)
        count = math.prod(full)
        inputs.append(torch.arange(start, start + count, dtype=torch.float64).reshape(full))
        start += count
    for value in node.inputs[len(inputs) :]:
        array = None if value is None else constant64(value)
        inputs.append(None if array is None else torch.from_numpy(np.array(array)))
    if node.op_type == "Pad":  # what is padded by one number has no identifier
        inputs = [*inputs[:2], torch.tensor(-1.0, dtype=torch.float64), *inputs[3:]]
    results = evaluate_node(node, inputs)
    joined = Gauge(
        np.concatenate([gauge.scale_of.reshape(-1) for gauge in written]),
        np.concatenate([gauge.shift_of.reshape(-1) for gauge in written]),
        np.concatenate([gauge.factor.reshape(-1) for gauge in written]),
    )
    found: list[Gauge] = []
    for value, result in zip(node.outputs, results, strict=False):
        identifiers = result.numpy().astype(np.int64)
        found.append(_settled(node, ties, value, joined, identifiers, acts))
    return found


def _settled(node: ir.Node, ties: Ties, value: ir.Value, joined: Gauge, identifiers: Ints, acts: Acts) -> Gauge:
    """Return the gauge of a result from the identifiers in it; cells that share an axis of unknown size are tied."""
    if node.op_type == "Pad" and (identifiers < 0).any():
        identifiers = np.where(identifiers < 0, identifiers.max(initial=0), identifiers)
    gauge = joined.picked(identifiers)
    dims = dims_of(value) or ()
    for axis in range(gauge.rank):
        if gauge.cells[axis] == 1:
            continue
        first = gauge.each(lambda array, axis=axis: np.take(array, [0], axis=axis))  # type: ignore[misc] # bound now
        same = all(
            np.array_equal(np.broadcast_to(one, whole.shape), whole)
            for one, whole in ((first.scale_of, gauge.scale_of), (first.shift_of, gauge.shift_of))
        )
        if same:
            gauge = first
        elif axis in acts.sizes or axis >= len(dims) or dims[axis] != gauge.cells[axis]:
            clause = "moves what varies along an axis whose size is not known"
            if axis in acts.sizes:
                clause = "turns channels into positions of one channel, which have to agree"
            gauge = ties.along(gauge, [axis], Tie(node, clause))
    return gauge


def _tied_along(node: ir.Node, ties: Ties, acts: Acts, operands: list[Gauge]) -> bool:
    """Tie what lies along the axes that are acted on, in all operands alike; the rest goes through."""
    why = Tie(node, "moves along the axis where it varies, by what is known at run time only")
    flat = [ties.along(gauge, acts.axes, why) for gauge in operands]
    cells = common(*flat)
    for gauge in flat[1:]:
        ties.same(gauge, flat[0], why)
    first = flat[0] if len(flat) == 1 else flat[0].spread(cells)
    if len(flat) > 1:  # the widest one stands for all
        first = next((gauge for gauge in flat if gauge.cells == cells), first)
    for value in node.outputs:
        rank = None if value.shape is None else value.shape.rank()
        if rank is None:
            continue
        extra = rank - first.rank
        if extra:  # Gather: the axes of the indices in the place of the axis
            (axis,) = acts.axes
            shape = (*first.cells[:axis], *(1,) * (extra + 1), *first.cells[axis + 1 :])
            ties.of[value] = first.each(lambda array, shape=shape: array.reshape(shape))  # type: ignore[misc] # now
        else:
            ties.of[value] = first
    return True


def _all_tied(node: ir.Node, ties: Ties, acts: Acts) -> bool:
    operands = _operands(node, ties, acts)
    return operands is not None and _tied_along(node, ties, acts, operands)


def reshape(node: ir.Node, ties: Ties) -> bool:
    """Tie Reshape, Flatten, Squeeze, Unsqueeze."""
    source, target = dims_of(required(node, 0)), dims_of(node.outputs[0])
    if source is None or target is None:
        return False
    gauge = ties.operand(node, 0, [2] * len(source))
    if gauge is None:
        return False
    identifiers = np.arange(math.prod(gauge.cells), dtype=np.int64).reshape(gauge.cells)
    full, shape, lost = [], [], []
    for inner, outer in groups(source, target):
        varies = any(gauge.cells[axis] > 1 for axis in inner)
        sizes = [source[axis] for axis in inner], [target[axis] for axis in outer]
        static = [[size for size in side if isinstance(size, int)] for side in sizes]
        same = [len(some) == len(side) for some, side in zip(static, sizes, strict=True)]
        if varies and all(same) and math.prod(static[0]) == math.prod(static[1]):
            full += static[0]
            shape += static[1]
        else:
            if varies:
                lost += list(inner)
            full += [1] * len(inner)
            shape += [1] * len(outer)
    if lost:
        gauge = ties.along(gauge, lost, Tie(node, "merges or repeats the axis along which it varies"))
        identifiers = np.arange(math.prod(gauge.cells), dtype=np.int64).reshape(gauge.cells)
    if math.prod(full) > 4 * MOST_CELLS:
        gauge = ties.along(gauge, range(gauge.rank), Tie(node, "has more elements than are followed"))
        ties.of[node.outputs[0]] = gauge.each(lambda array: array.reshape((1,) * len(target)))
        return True
    moved = np.broadcast_to(identifiers, full).reshape(shape)
    ties.of[node.outputs[0]] = _settled(node, ties, node.outputs[0], gauge.each(lambda a: a.reshape(-1)), moved, Acts())
    return True


def expand(node: ir.Node, ties: Ties) -> bool:
    """Tie Expand: what is repeated is one cell."""
    target = dims_of(node.outputs[0])
    gauge = ties.operand(node, 0, [2] * (0 if target is None else len(target)))
    if target is None or gauge is None or gauge.rank > len(target):
        return False
    ties.of[node.outputs[0]] = gauge.wider(len(target))
    return True


def pad(node: ir.Node, ties: Ties) -> bool:
    """Tie Pad: reflected, repeated and wrapped values are moved ones; one number must stay one number.

    v' = (v - t) / s is one number for all cells where t = 0 and v = 0, or where s and t are one.
    """
    if string(node, "mode", "constant") != "constant":
        return tie(node, ties)
    dims = dims_of(required(node, 0))
    gauge = ties.operand(node, 0)
    if dims is None or gauge is None:
        return False
    acts = _pad(node, len(dims))
    if not acts.known:
        return ties.refuse(node, "pads by widths that are known at run time only")
    flat = ties.along(gauge, acts.axes, Tie(node, "pads along the axis where it varies"))
    value = optional(node, 2)
    number = np.zeros(1) if value is None else constant64(value)
    if number is None:
        ties.pinned(flat, Tie(node, "pads with what is known at run time only"))
    elif math.prod(flat.cells) > 1:
        mode = ties.pads.get(node)
        if mode == "loose":
            pass  # what is written tells
        elif float(np.asarray(number).reshape(-1)[0]) == 0.0 and mode is None:
            flat = ties.no_shift(flat, Tie(node, "pads with zeros, which a shift would change"))
        else:
            ties.along(flat, range(flat.rank), Tie(node, "pads all channels with one number"))
    ties.of[node.outputs[0]] = flat
    return True


def axes_of(node: ir.Node, position: int, rank: int) -> list[int] | None:
    """Return the axes listed in an attribute or an input; all by default, None where they are computed."""
    operand = optional(node, position)
    if operand is None:
        listed = ints(node, "axes", ())
        if listed or integer(node, "noop_with_empty_axes", 0):
            return sorted(axis % rank for axis in listed)
        return list(range(rank))
    axes = constant64(operand)
    if axes is None:
        return None
    if axes.size == 0 and not integer(node, "noop_with_empty_axes", 0):
        return list(range(rank))
    return sorted(int(axis) % rank for axis in axes.reshape(-1))


def write_pad(edit: Edit) -> None:
    """Let what is padded with follow: v' = (v - t) / s."""
    node, value = edit.node, optional(edit.node, 2)
    if string(node, "mode", "constant") != "constant":
        return
    number = np.zeros(1) if value is None else constant64(value)
    if number is None:
        return
    scale, shift = edit.result()
    old = float(np.asarray(number).reshape(-1)[0])
    new = (old - shift) / scale
    if old == 0 and not shift.any():
        return
    if not (new == new.reshape(-1)[0]).all():
        raise Refused(node, f"{describe(node)} pads all channels with one number, which it sends to several")
    dtype = node.outputs[0].dtype or ir.DataType.FLOAT
    require_small(node, dtype, new)
    name = f"{node.name or node.outputs[0].name}.value" if value is None else str(value.name)
    edit.read(2, edit.constant(lambda: np.array(new.reshape(-1)[0]), (), dtype, name=name, succeeds=value))
