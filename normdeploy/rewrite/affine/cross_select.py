"""Split, Slice, Gather: operators that select along one axis.

In front: the selected entries of s and t go on behind the operator. Behind: what is selected takes the map, what is not
stays as it is (s = 1, t = 0 there), so other operators may go on selecting the rest: this is how a scale on the queries
goes into the joint projection of queries, keys and values. Selecting from a constant table (an embedding) changes the
table: table' = s * table + t.

Refused:
- what is selected is not known before run time, and the map varies along that axis (Gather) or others read the rest;
- others read the selected part too, or something else than a selection reads the same value;
- the size of the axis is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.graph import constant64, constant_tensor
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import integer, optional, required
from normdeploy.rewrite.affine.cross import pass_back
from normdeploy.rewrite.affine.forward import Forward
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe, readers
from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Refusal, Region


@dataclass(frozen=True)
class Selection:
    """What one output selects of the data input.

    Args:
        axis: along which axis of the data.
        size: of that axis; None where it is dynamic.
        picked: indices in order, of the selection's own shape (rank 0 drops the axis); None where not known.
        rank: of the indices.
    """

    axis: int
    size: int | None
    picked: npt.NDArray[np.int64] | None
    rank: int


def selection(node: ir.Node, index: int) -> Selection | None:
    """Return what output ``index`` of Split, Slice or Gather selects; None if more than one axis is cut."""
    dims = dims_of(required(node, 0))
    if dims is None:
        return None
    if node.op_type == "Gather":
        axis = integer(node, "axis", 0) % len(dims)
        size = dims[axis]
        indices = required(node, 1)
        rank = None if indices.shape is None else indices.shape.rank()
        picked = constant64(indices)
        if rank is None:
            return None
        if not isinstance(size, int):
            return Selection(axis, None, None, rank)
        return Selection(axis, size, None if picked is None else np.asarray(picked % size, dtype=np.int64), rank)
    found = _split(node, index, len(dims)) if node.op_type == "Split" else _slice(node, len(dims))
    if found is None:
        return None
    axis, window = found
    size = dims[axis]
    if not isinstance(size, int):
        return Selection(axis, None, None, 1)
    return Selection(axis, size, np.arange(size)[window], 1)


def _split(node: ir.Node, index: int, rank: int) -> tuple[int, slice] | None:
    axis = integer(node, "axis", 0) % rank
    sizes: list[int] = []
    for output in node.outputs:
        size = None if output.shape is None else output.shape[axis]
        if not isinstance(size, int):
            return None
        sizes.append(size)
    start = sum(sizes[:index])
    return axis, slice(start, start + sizes[index])


def _slice(node: ir.Node, rank: int) -> tuple[int, slice] | None:
    starts, ends = constant64(optional(node, 1)), constant64(optional(node, 2))
    given = [optional(node, position) for position in (3, 4)]
    if starts is None or ends is None:
        return None
    axes = np.arange(starts.size) if given[0] is None else constant64(given[0])
    steps = np.ones(starts.size, dtype=np.int64) if given[1] is None else constant64(given[1])
    if axes is None or steps is None or starts.size != 1:
        return None
    start, end, step = int(starts.reshape(-1)[0]), int(ends.reshape(-1)[0]), int(steps.reshape(-1)[0])
    # the smallest integers stand for "to the very beginning" of a backward slice
    stop = None if step < 0 and end < -(1 << 31) + 2 else end
    return int(axes.reshape(-1)[0]) % rank, slice(start, stop, step)


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Give the selected part the map and the rest the identity."""
    data = required(node, 0)
    chosen = selection(node, index)
    if chosen is None:
        return Refusal(f"what {describe(node)} selects is not known", node)
    whole = _to_data(chosen, mapping)
    others = [] if constant_tensor(data) is not None else readers(data, node)
    used_elsewhere = any(
        output.uses() or output.is_graph_output() for at, output in enumerate(node.outputs) if at != index
    )
    if whole is not None and not others and not used_elsewhere:
        plan = search.into(data, whole, node)
        return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)
    if chosen.picked is None or chosen.size is None:
        return Refusal(f"what {describe(node)} selects along the axis where it varies is not known", node)
    if not others and not used_elsewhere:
        plan = search.into(data, _scattered(chosen, mapping, chosen.size, chosen.picked), node)
        return plan if isinstance(plan, Refusal) else pass_back(node, index, 0, plan)
    blocked = search.unreachable(data) or _overlap(node, others, chosen, data)
    if blocked is not None:
        return blocked
    plan = search.enter(data, _scattered(chosen, mapping, chosen.size, chosen.picked))
    return plan if isinstance(plan, Refusal) else _share(node, index, others, plan)


def _to_data(chosen: Selection, mapping: AffineMap) -> AffineMap | None:
    """Return the map on the data where it does not vary along what the selection made; None where it does."""
    made = range(chosen.axis, chosen.axis + chosen.rank)
    if any(axis in mapping.axes for axis in made):
        return None

    def follow(array: Array) -> Array:
        shape = array.shape
        return array.reshape(*shape[: chosen.axis], 1, *shape[chosen.axis + chosen.rank :])

    return mapping.moved(follow)


def _scattered(chosen: Selection, mapping: AffineMap, size: int, picked: npt.NDArray[np.int64]) -> AffineMap:
    """Return the map on the data that is ``mapping`` where selected and the identity elsewhere."""
    before, after = chosen.axis, chosen.axis + chosen.rank

    def follow(array: Array, neutral: float) -> Array:
        shape = array.shape
        written = np.broadcast_to(array, (*shape[:before], *picked.shape, *shape[after:]))
        flat = written.reshape(*shape[:before], picked.size, *shape[after:])
        result = np.full((*shape[:before], size, *shape[after:]), neutral)
        np.moveaxis(result, before, 0)[picked.reshape(-1)] = np.moveaxis(flat, before, 0)
        return result

    rank = mapping.rank - chosen.rank + 1
    return AffineMap.of(follow(mapping.scale, 1.0), follow(mapping.shift, 0.0), rank)


def _overlap(node: ir.Node, others: list[ir.Node], chosen: Selection, data: ir.Value) -> Refusal | None:
    """Refuse where anything but a selection of the rest reads the data."""
    assert chosen.picked is not None
    taken = set(chosen.picked.reshape(-1).tolist())
    if len(taken) != chosen.picked.size:
        return Refusal(f"{describe(node)} selects the same part twice", node)
    for other in others:
        if other.op_type not in ("Split", "Slice", "Gather") or [v for v in other.inputs[1:] if v is data]:
            return Refusal(f"{describe(other)} reads the same value as {describe(node)} in front of it", other)
        for at in range(len(other.outputs)):
            theirs = selection(other, at)
            if theirs is None or theirs.picked is None or theirs.axis != chosen.axis:
                return Refusal(f"what {describe(other)} selects beside {describe(node)} is not known", other)
            if taken & set(theirs.picked.reshape(-1).tolist()):
                return Refusal(f"{describe(other)} selects the same part as {describe(node)}", other)
    return None


def _share(node: ir.Node, index: int, others: list[ir.Node], plan: BackwardPlan) -> BackwardPlan:
    """Return the plan in which every selection reads the new data; only ours comes out changed."""

    def build(region: Region) -> ir.Value:
        data = plan.build(region)
        new = region.replace(node, [data, *node.inputs[1:]])
        for at, output in enumerate(node.outputs):
            if at != index:
                region.same(output, new.outputs[at])
        for other in others:
            copy = region.replace(other, [data, *other.inputs[1:]])
            for old, result in zip(other.outputs, copy.outputs, strict=True):
                region.same(old, result)
        return new.outputs[index]

    return BackwardPlan(build, (*plan.old, node, *others), plan.into, plan.cost)


def forward(node: ir.Node, index: int, mapping: AffineMap, search: Forward) -> ForwardPlan | Refusal:
    """Select from s and t too; every output's readers must take their part."""
    assert index == 0  # what selects holds integers
    plans: list[tuple[int, ForwardPlan]] = []
    for at, output in enumerate(node.outputs):
        chosen = selection(node, at)
        moved = None if chosen is None else _selected(chosen, mapping)
        if moved is None:
            return Refusal(f"what {describe(node)} selects along the axis where it varies is not known", node)
        if not output.uses() and not output.is_graph_output():
            continue
        plan = search.through(output, moved)
        if isinstance(plan, Refusal):
            return plan
        plans.append((at, plan))

    def build(region: Region, raw: ir.Value) -> None:
        new = region.replace(node, [raw, *node.inputs[1:]])
        for at, plan in plans:
            plan.build(region, new.outputs[at])

    return ForwardPlan(
        build,
        (node, *(old for _, plan in plans for old in plan.old)),
        tuple(taken for _, plan in plans for taken in plan.into),
        sum(plan.cost for _, plan in plans),
    )


def _selected(chosen: Selection, mapping: AffineMap) -> AffineMap | None:
    varies = chosen.axis in mapping.axes
    if varies and chosen.picked is None:
        return None

    def follow(array: Array) -> Array:
        shape = array.shape
        if shape[chosen.axis] == 1:
            return array.reshape(*shape[: chosen.axis], *(1,) * chosen.rank, *shape[chosen.axis + 1 :])
        assert chosen.picked is not None
        return np.take(array, chosen.picked, axis=chosen.axis)

    return mapping.moved(follow)
