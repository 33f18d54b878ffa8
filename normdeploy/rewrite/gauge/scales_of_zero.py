"""Which gauges to choose around a map that scales channels by 0, so that no 0 has to be undone.

Such a map leaves in one of two ways: weights in front of it are divided by its 0, which makes zeros of what they write,
or weights behind it are multiplied by 0, and each value stays what it is. While it moves a 0 is a tiny number
(:mod:`.rules.maps`), and what is divided by it stands for infinity. Of the values that are voted for a free unknown

- none is taken by which weights behind a value were divided by 0, or those in front of it multiplied: none undoes a 0;
- nor one that makes a value infinite, where its 0 can go to what is behind it.

The second leaves the map's shift where it is as well: s_y = 0 divides by 0 what of t_y is not carried on. So where a
shift has to stay behind (relu(0 x + t)), the value in front is the one that becomes infinite.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.operator_inputs import optional
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.gauge.equations.expression_rows import Ints
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.oriented_product import product_of
from normdeploy.rewrite.gauge.shift_limits import STAYS_BEHIND
from normdeploy.rewrite.gauge.ties import Ties

Bools = npt.NDArray[np.bool_]

Every = tuple[Ints, Floats, Floats]
"""Of every unknown the free one that it depends on, with coefficient (or exponent) and constant."""

_INFINITE = 150.0
"""Binary logarithm of what stands for infinity (1 / :data:`.rules.weights.VANISHES`)."""


def scales_by_zero(ties: Ties) -> list[ir.Node]:
    """Return the maps of a graph that scale a channel by 0."""
    return [node for node in ties.nodes if is_affine(node) and not affine_map(node).scale.all()]


def sides_of(node: ir.Node) -> tuple[ir.Value | None, ir.Value]:
    """Return what an operator with weights reads, and what it writes, a bias behind it included."""
    product = product_of(node)
    return (optional(node, 0), node.outputs[0]) if product is None else (node.inputs[product.x], product.result)


def left_behind(maps: list[ir.Node], ties: Ties, shifts: Floats) -> tuple[Ints, Ints]:
    """Return the scales of what maps read and make of channels that they scale by 0, and whose shifts stay behind.

    Args:
        maps: those that scale a channel by 0. ties: the unknowns. shifts: value of every T.
    """
    read, made = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for node in maps:
        result = ties.of.get(node.outputs[0])
        if result is None or node in ties.stiff:
            continue
        mapping, source = affine_map(node), ties.operand(node, 0)
        carried = result.factor * shifts[result.shift_of]
        stays = np.abs(mapping.shift - carried) > STAYS_BEHIND * (np.abs(mapping.shift) + np.abs(carried))
        stays = stays & (mapping.scale == 0)
        read.append(np.broadcast_to(source.scale_of, stays.shape)[stays])
        made.append(np.broadcast_to(result.scale_of, stays.shape)[stays])
    return np.concatenate(read), np.concatenate(made)


def allowed_scales(ties: Ties, divided: tuple[Ints, Ints], free: Ints, wanted: Floats, every: Every) -> Bools:
    """Tell which of the values that are voted for are taken.

    Args:
        ties: the unknowns.
        divided: what :func:`left_behind` returns.
        free: unknowns that are free. wanted: a value for each.
        every: what unknowns are.
    """
    root = every[0]
    read, written = _scaling_weights(ties, root)
    undone = _becomes(np.inf, read, free, wanted, every) | _becomes(0.0, written, free, wanted, every)
    one, other = (root[unknown] for unknown in divided)
    endless = _becomes(np.inf, np.arange(len(root)), free, wanted, every) & ~np.isin(free, one[one == other])
    return _or_else(_or_else(~undone & ~endless, ~undone, free), np.ones(len(free), bool), free)


def allowed_shifts(free: Ints, wanted: Floats, every: Every) -> Bools:
    """Tell which of the values that are voted for are taken: those that leave every other shift finite."""
    root, coefficient, constant = every
    endless = np.abs(wanted) > 2.0**_INFINITE
    divided = np.flatnonzero((root > 0) & (np.abs(coefficient) > 2.0**_INFINITE))
    if len(divided):  # what is divided by 0 has to be 0
        needed = np.full(len(root), np.nan)
        needed[root[divided]] = -constant[divided] / coefficient[divided]
        asked = needed[free]
        endless = endless | (np.abs(wanted - asked) > STAYS_BEHIND * (np.abs(wanted) + np.abs(asked)))
    return _or_else(~endless, np.ones(len(free), bool), free)


def _or_else(first: Bools, second: Bools, free: Ints) -> Bools:
    """Return what the first allows, and for unknowns of which it allows nothing what the second does."""
    none = ~np.isin(free, free[first])
    return first | (second & none)


def _scaling_weights(ties: Ties, root: Ints) -> tuple[Ints, Ints]:
    """Return the scales by which weights are multiplied, and those by which they are divided, of maps that stay too."""
    found: tuple[list[Ints], list[Ints]] = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for node in ties.nodes:
        rule = rule_of(node)
        if rule is None or not rule.absorbs:
            continue
        front, behind = (None if value is None else ties.of.get(value) for value in sides_of(node))
        if is_affine(node) and front is not None and behind is not None:
            one, other = np.broadcast_arrays(front.scale_of, behind.scale_of)
            stays = root[one] != root[other]  # of one that leaves one side follows from the other
            found[0].append(one[stays])
            found[1].append(other[stays])
            continue
        for side, gauge in zip(found, (front, behind), strict=True):
            side += [] if gauge is None else [gauge.scale_of.reshape(-1)]
    return np.concatenate(found[0]), np.concatenate(found[1])


def _becomes(limit: float, among: Ints, free: Ints, wanted: Floats, every: Every) -> Bools:
    """Tell which values of free scales make one of some that depend on them stand for 0, or for infinity.

    Args:
        limit: 0 or infinity.
        among: the unknowns that count.
        free: unknowns that are free. wanted: a value for each.
        every: what unknowns are.
    """
    root, exponent, constant = (part[among] for part in every)
    sign, found = 1.0 if limit else -1.0, np.zeros(len(free), bool)
    with np.errstate(divide="ignore"):
        sizes, asked = (sign * np.log2(np.abs(array)) for array in (constant, wanted))
    for power in (1.0, -1.0):
        largest, same = np.full(len(every[0]), -np.inf), (root > 0) & (exponent == power)
        np.maximum.at(largest, root[same], sizes[same])
        found |= largest[free] + power * asked > _INFINITE
    return found
