"""Find the largest part of a region that is one normalization."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.errors import GraphError
from normdeploy.graph import round_once
from normdeploy.graph.operators.evaluation_limits import TooMuchError
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.recognise.builder import Builder
from normdeploy.rewrite.recognise.clamps import clamp_of
from normdeploy.rewrite.recognise.emit import INSTANCE_TYPES, emit
from normdeploy.rewrite.recognise.hypothesis import Norm
from normdeploy.rewrite.recognise.norm_region import GraphRegions, Region
from normdeploy.rewrite.recognise.probe import Probe
from normdeploy.rewrite.recognise.solve import (
    Core,
    affine_from,
    disagreement,
    find_core,
    ignores_scale,
    pattern,
    trials,
)
from normdeploy.rewrite.recognise.trial_sizes import TURNS

_FREE = Trait.KEEPS_ORDER | Trait.SIZES  # pass over no data
_GROUPED = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
_SAME = 1e-12  # relative; the solved scale and shift carry a few float64 rounding errors


_Row = tuple[ir.Value, Floats, Floats, Floats, Floats]
"""A value at 1e8 p, -1e8 p, 1e9 p and -1e9 p."""


@dataclass(frozen=True)
class Found:
    """A part of a region that is one normalization.

    Args:
        region: where.
        y: the value that equals ``norm`` of ``region.x``.
        norm: what, with scale and shift of size 1 along every axis on which they are constant.
        bare: the scale before any affine, where it is one number: 1, or sqrt((n - 1) / n) for an unbiased variance.
    """

    region: Region
    y: ir.Value
    norm: Norm
    bare: float | None = None

    @property
    def instance(self) -> bool:
        """Whether it was an InstanceNormalization before."""
        return self.region.seed.op_type == "InstanceNormalization"


@dataclass(frozen=True)
class Missed:
    """A part of a region that behaves like a normalization at large inputs and is none of ours.

    Args:
        region: where.
        y: the value that was tried.
        reason: what did not agree.
    """

    region: Region
    y: ir.Value
    reason: str


def best_of(
    regions: GraphRegions, seed: ir.Node, rng: np.random.Generator, handled: Set[ir.Node] = frozenset()
) -> tuple[Found | None, Missed | None]:
    """Return the normalization around a seed, and what came near where none is.

    The largest region comes first: where it is a normalization, the views and transposes in it are saved too. One that
    reaches over what is ``handled`` already is returned only where no smaller one is free.
    """
    around = list(regions.regions(seed))
    if around and _is_plain(around[0]):
        return None, None
    missed: Missed | None = None
    taken: Found | None = None
    for region in reversed(around):
        result = search(region, rng)
        if isinstance(result, Found):
            if handled.isdisjoint(region.between(result.y)):
                return result, None
            taken = taken or result
        else:
            missed = result or missed
    return taken, missed


def _is_plain(region: Region) -> bool:
    """Tell whether a region is a norm operator with nothing around it that could merge into it."""
    producer = region.x.producer()
    alone = len(region.candidates) == 1 and region.candidates[0] is region.seed.outputs[0]
    stock = has(region.seed, Trait.NORMALIZES) and region.seed.op_type not in _GROUPED
    stock &= not without_kernel(region.seed)
    return stock and alone and (producer is None or producer.op_type not in ("Reshape", "Transpose", "Mul", "Div"))


def without_kernel(node: ir.Node) -> bool:
    """Tell whether the runtime has no kernel for a norm operator, or none for its type."""
    if node.op_type == "GroupNormalization":  # a function, spelled out in a dozen operators
        return True
    return node.op_type == "InstanceNormalization" and node.outputs[0].dtype not in INSTANCE_TYPES


def operators_for(found: Found) -> list[ir.Node]:
    """Return the operators that would stand for a normalization, of a stand-in for its input.

    Of x itself they would count among its users.
    """
    x = found.region.x
    builder = Builder("", x.dtype or ir.DataType.FLOAT)
    emit(found.norm, ir.Value(name="x", shape=x.shape), builder, instance=found.instance)
    return [node for node in builder.nodes if node not in builder.small]


def passes_over_data(nodes: list[ir.Node]) -> int:
    """Return the number of operators that pass over data."""
    return sum(not has(node, _FREE) for node in nodes)


def search(region: Region, rng: np.random.Generator) -> Found | Missed | None:
    """Return the normalization that reaches furthest in a region.

    It reaches over a scale or shift only if nothing else reads the value before: two affines of one normalized value
    stay two affines of one operator.
    Returns None where nothing behaves like a normalization.
    """
    try:
        return _search(region, rng)
    except TooMuchError as error:
        return Missed(region, region.candidates[-1], f"it is not probed: {error}, or leave the dimension open")
    except GraphError as error:
        # sizes we made up for dynamic dimensions need not fit (a Reshape by 7); such a region cannot be judged
        if all(isinstance(dim, int) for dim in region.x.shape or ()):
            raise
        return Missed(region, region.candidates[-1], f"it does not run at sizes made up for its dynamic ones ({error})")


def _search(region: Region, rng: np.random.Generator) -> Found | Missed | None:
    if 0 in (region.x.shape or ()):  # of nothing, nothing tells one function from another
        return None
    probe = Probe(region)
    p = pattern(probe.shape, rng)
    values = list(region.candidates)
    if p.size < 2:
        return None
    with np.errstate(all="ignore"):
        results = [probe.run(scale * p, values) for scale in (1e8, -1e8, 1e9, -1e9)]
    rows: list[_Row] = list(zip(values, *results, strict=True))
    alive = [row for row in rows if row[1].shape == p.shape and ignores_scale((row[1], row[2]), (row[3], row[4]))]
    if not alive:
        return None
    core = next(filter(None, (_solve_core(probe, row, p) for row in alive)), None)
    if core is None:
        return Missed(region, alive[-1][0], "its blocks of statistics or its epsilon have no form we know")
    solved = [(row[0], affine_from(row[1], row[2], p, core)) for row in alive]
    last = alive[-1]
    del results, rows, alive
    hopeful = [(value, norm) for value, norm in solved if norm is not None]
    distances = _distances(probe, hopeful, rng)
    chain: list[Found] = []
    bare: float | None = None
    for (value, norm), distance in zip(hopeful, distances, strict=True):
        collapsed = _collapse(norm, value) if distance <= 1.0 else None
        if collapsed is not None and (not chain or region.extends(chain[-1].y, value)):
            if not chain and collapsed.scale.size == 1:
                bare = float(collapsed.scale.reshape(-1)[0])
            chain.append(Found(region, value, collapsed, bare))
    whole = None if chain and chain[-1].y is last[0] else _with_its_own_core(probe, last, p, core, rng)
    if whole is not None and (not chain or region.extends(chain[-1].y, whole.y)):
        chain.append(whole)
    clamp: ir.Node | None = None
    for found in reversed(chain):
        clamp = None if probe.static else clamp_of(region, region.between(found.y))
        elsewhere = found if probe.static else None if clamp is not None else _elsewhere(found, probe, rng)
        if elsewhere is not None:
            return elsewhere
    if clamp is not None:
        name = clamp.name or clamp.outputs[0].name
        return Missed(region, chain[-1].y, f"{clamp.op_type} {name!r} compares a dynamic dimension with a number")
    if chain:
        return Missed(region, chain[-1].y, "what it computes changes with the size of a dynamic dimension")
    nearest = min(distances, default=float("inf"))
    return Missed(region, solved[-1][0], f"the nearest normalization differs by {nearest:.1e} times what is allowed")


def _with_its_own_core(probe: Probe, last: _Row, p: Floats, known: Core, rng: np.random.Generator) -> Found | None:
    """Return the furthest value as a normalization of its own: one around an operator may have another epsilon.

    So it is with epsilon outside the root, written as LayerNormalization and what its 1/s repairs.
    """
    core = _solve_core(probe, last, p)
    if core is None or core == known:
        return None
    norm = affine_from(last[1], last[2], p, core)
    if norm is None or _distances(probe, [(last[0], norm)], rng)[0] > 1.0:
        return None
    collapsed = _collapse(norm, last[0])
    return None if collapsed is None else Found(probe.region, last[0], collapsed)


def _distances(probe: Probe, hopeful: list[tuple[ir.Value, Norm]], rng: np.random.Generator) -> list[float]:
    """Return how far each value is from its hypothesis over all trials, in units of what is allowed."""
    worst = [0.0] * len(hopeful)
    if hopeful:
        for x in trials(hopeful[0][1], probe.shape, rng):
            found = probe.run(x, [value for value, _ in hopeful])
            ratios = [disagreement(y, x, norm) for y, (_, norm) in zip(found, hopeful, strict=True)]
            worst = [max(pair) for pair in zip(worst, ratios, strict=True)]
    return worst


def _solve_core(probe: Probe, row: _Row, p: Floats) -> Core | None:
    with np.errstate(all="ignore"):
        return find_core(lambda x: probe.run(x, [row[0]])[0], p, row[1], row[2])


def _collapse(norm: Norm, y: ir.Value) -> Norm | None:
    """Reduce scale and shift along the axes on which they are constant; None if they change along a dynamic one."""
    # each place by its own size: beside a scale of 1e30 every other scale and shift would be nothing
    size = np.abs(norm.scale)
    scale, shift = _snap(norm.scale, y.dtype, 0.0), _snap(norm.shift, y.dtype, size)
    scale, shift = _constant_axes(scale, _SAME * size), _constant_axes(shift, _SAME * (size + np.abs(shift)))
    for axis, dim in enumerate(y.shape or ()):
        if not isinstance(dim, int) and (scale.shape[axis] != 1 or shift.shape[axis] != 1):
            return None
    return replace(norm, scale=scale, shift=shift)


def _constant_axes(values: Floats, tolerance: Floats) -> Floats:
    for axis in range(values.ndim):
        first, of_first = values.take([0], axis=axis), tolerance.take([0], axis=axis)
        if (np.abs(values - first) <= tolerance + of_first).all():
            values, tolerance = first, of_first
    return values


def _snap(values: Floats, dtype: ir.DataType | None, size: Floats | float) -> Floats:
    """Undo the solver's float64 rounding where the exact value must have been one the stored type can hold."""
    near = values.astype(np.float32).astype(np.float64)
    if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and dtype is not None:
        near = round_once(values, dtype).astype(np.float64)
    tolerance = 1e-13 * np.abs(values) + 1e-15 * size
    return np.where(np.abs(values - near) <= tolerance, near, values)


def _elsewhere(found: Found, first: Probe, rng: np.random.Generator) -> Found | None:
    """Return what agrees at further sizes of the dynamic dimensions too; None if nothing does.

    A variance divided by n - 1 with a dynamic n agrees only in its own units.
    """
    others = [Probe(found.region, turn) for turn in range(1, TURNS)]
    if all(_agrees(found, probe, rng) for probe in others):
        return found
    count = found.norm.blocks.count(first.shape)
    if not found.norm.centred or all(found.norm.blocks.count(probe.shape) == count for probe in others):
        return None
    unbiased = _collapse(found.norm.in_units_of(count), found.y)
    own = None if unbiased is None else replace(found, norm=unbiased)
    return own if own is not None and all(_agrees(own, probe, rng) for probe in others) else None


def _agrees(found: Found, probe: Probe, rng: np.random.Generator) -> bool:
    x = next(trials(found.norm, probe.shape, rng))
    y = probe.run(x, [found.y])[0]
    return y.shape == x.shape and disagreement(y, x, found.norm) <= 1.0
