"""How far a result moves when what an operator reads is rounded otherwise: what a check must not take for a difference.

An operator is run on s x' + t. Where t is large beside s (a channel that training has almost switched off: gamma near 0
beside a shift of its own size), that sum keeps few of the digits of x', and where the shifts of two operands cancel,
t_a + t_b = 0, so does their total: a right rewriting comes out some 1e-16 t / s apart from the old operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.graph import evaluate_region
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.rules.weights import VANISHES

FAR = 1e3
"""A shift so many times its scale is far: below, rounding stays under a thousandth of what a check tolerates."""

UNITS = 32.0
"""Of how many roundings of its inputs a result may consist: it is rounded on the way, and so is the new one."""

BLIND = 1e-3
"""The share of a result's variation that rounding may hide; where it hides more in every cell, nothing is checked."""


def noise_of(
    at: Solution,
    nodes: Sequence[ir.Node],
    plain: Mapping[ir.Value, Tensor],
    results: Sequence[Tensor],
    values: Sequence[ir.Value],
) -> list[Floats | None] | None:
    """Return for each result how far rounding may move it, per cell.

    Args:
        at: the gauges.
        nodes: an operator and what belongs to it.
        plain: what it reads, s x' + t.
        results: what it makes of that.
        values: whose results these are.

    Returns:
        None for each where no shift is far; no list where nothing but rounding is seen.
    """
    if not any(is_far(at, value) for value in plain):
        return [None] * len(values)
    rng = np.random.default_rng(0)
    moved = [
        evaluate_region(nodes, {value: _nudged(read, rng) for value, read in plain.items()}, values) for _ in range(2)
    ]
    found: list[Floats | None] = []
    seen = False
    for value, result, *others in zip(values, results, *moved, strict=True):
        if not result.is_floating_point() or not result.numel():
            found.append(None)
            continue
        old, axes = result.numpy(), _axes_of_cells(at.ties.of.get(value), result)
        off = np.maximum(*(np.abs(other.numpy() - old) for other in others))
        noise = UNITS * off.max(axis=axes, keepdims=True, initial=0.0, where=np.isfinite(off))
        seen |= bool((noise <= BLIND * np.ptp(old, axis=axes, keepdims=True)).any())
        found.append(noise)
    return found if seen else None


def is_far(at: Solution, value: ir.Value) -> bool:
    """Tell whether a value's shift is many times its scale."""
    gauge = at.ties.of.get(value)
    if gauge is None or at.is_identity(gauge):
        return False
    return bool((np.abs(at.shift(gauge)) > FAR * np.maximum(np.abs(at.scale(gauge)), VANISHES)).any())


def _nudged(read: Tensor, rng: np.random.Generator) -> Tensor:
    """Return a tensor of floats with each element up to one unit of its last place away."""
    if not read.is_floating_point():
        return read
    units = torch.from_numpy(np.asarray(rng.uniform(-1.0, 1.0, read.shape)))
    return read * (1.0 + units * torch.finfo(read.dtype).eps)


def _axes_of_cells(gauge: Gauge | None, result: Tensor) -> tuple[int, ...]:
    """Return the axes along which a gauge is one."""
    cells = () if gauge is None else gauge.cells
    return tuple(
        axis for axis in range(result.ndim) if axis < result.ndim - len(cells) or cells[axis - result.ndim] == 1
    )
