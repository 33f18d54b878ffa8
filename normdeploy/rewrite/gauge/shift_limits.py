r"""What a value may carry: a shift that is folded costs precision where it is large beside what the value tells.

1. *Values far from zero* are not summed before a norm has taken their mean off
   (:mod:`normdeploy.rewrite.affine.far_from_zero`). Towards the inputs there is nothing to lose: an operator in front
   of a norm makes the large values anyway. Nor is there where only differences of values are looked at (Softmax).

2. *Streams.* relu(s x + t) = s relu(x + t / s): the shift t / s goes to whatever writes the residual stream x, which
   carries it for all its readers and is rounded with it. A norm brings x to 1 by its scale s, so u = t / s may not be
   much larger than 1 / s: RMS(u) at most :data:`LARGEST` times the median of 1 / abs(s). A norm has s = gamma / sigma;
   a channel that training has almost switched off (gamma near 0) has a huge u.

Source: measured by ``python benchmarks/fold_numerics.py`` (docs/graphs-from-anywhere.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine, origins_of
from normdeploy.rewrite.affine.far_from_zero import DEVIATION, is_centred, is_far, offset_in
from normdeploy.rewrite.affine.operator_names import describe, readers
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.powers import takes_power
from normdeploy.rewrite.gauge.rules.weights import VANISHES

DIGITS = 1e-8
"""Relative difference above which what is taken up elsewhere is not the map that disappears."""

_BLIND = ("Softmax", "LogSoftmax", "ArgMax", "ArgMin", "Hardmax")
"""Operators that look at differences of what they read alone: no sum is made of an offset, and none is taken off."""

STAYS_BEHIND = 1e-9
"""Share of a map's shift above which what is carried of it is not all."""

LARGEST = 2.0
"""Largest root mean square of what a stream carries, in units of the median of 1 / abs(s)."""


def divided_by_zero(maps: Sequence[ir.Node], solution: Solution) -> list[ir.Node]:
    """Return the maps with a scale of 0 that would have to be divided by: relu(0 x + t) is no multiple of relu(x).

    A scale of 0 counts as a tiny one while it moves. That is right where what is computed in the place of the map's
    result stays of the size of its input; where the shift is divided by the scale, its product with zero is lost.
    """
    found: list[ir.Node] = []
    for node in maps:
        mapping, gauges = affine_map(node), solution.ties.of
        source, result = node.inputs[0], node.outputs[0]
        if (mapping.scale != 0).all() or source is None:
            continue
        (s_x, t_x), (s_y, t_y) = ((solution.scale(gauges[v]), solution.shift(gauges[v])) for v in (source, result))
        left = np.abs(mapping.shift - t_y)
        lost = (np.abs(s_y) < VANISHES) & (left > STAYS_BEHIND * (np.abs(mapping.shift) + np.abs(t_y)))
        if ((mapping.scale == 0) & (lost | (np.abs(t_x) > np.abs(s_x) / VANISHES))).any():
            found.append(node)
    return found


def undecided(solution: Solution) -> dict[ir.Node, str]:
    """Return the operators that tell values apart which are scaled by 0, or raise them to a power, and what they do."""
    ties = solution.ties

    def vanishes(value: ir.Value | None) -> bool:
        gauge = None if value is None else ties.of.get(value)
        return gauge is not None and bool((np.abs(solution.scale(gauge)) < VANISHES).any())

    reading = [node for node in ties.nodes if rule_of(node) is not None and any(map(vanishes, node.inputs))]
    found = {
        node: "chooses among values that it scales by 0, which are all one"
        for node in reading
        if has(node, Trait.DECIDES)
    }
    return found | {node: "raises to a power what it scales by 0" for node in reading if takes_power(node)}


def inexact(gone: Sequence[ir.Node], solution: Solution) -> dict[ir.Node, str]:
    """Return the maps that would not disappear whole: s_y = a s_x and t_y = a t_x + b is asked of the numbers found.

    A map that disappears is no operator any more, so that no check of an operator sees it. Where a is 0 see
    :func:`divided_by_zero`.
    """
    found: dict[ir.Node, str] = {}
    for node in gone:
        mapping, source, result = affine_map(node), solution.ties.operand(node, 0), solution.ties.of[node.outputs[0]]
        live = mapping.scale != 0
        wanted, moved = mapping.scale * solution.scale(source), mapping.scale * solution.shift(source)
        shift = solution.shift(result)
        scale_off = np.abs(solution.scale(result) - wanted) > DIGITS * np.abs(wanted)
        size = np.abs(shift) + np.abs(moved) + np.abs(mapping.shift)
        shift_off = np.abs(shift - moved - mapping.shift) > DIGITS * size
        if (live & (scale_off | shift_off)).any():
            found[node] = (
                f"what the operators around it can take up differs from it by more than {DIGITS:.0e} of its size"
            )
    return found


def far(gone: Sequence[ir.Node], solution: Solution) -> dict[ir.Node, str]:
    """Return the maps of values far from zero that are folded behind them, each with the reason that speaks against."""
    found: dict[ir.Node, str] = {}
    for node in gone:
        result = node.outputs[0]
        if not is_far(node) or not solution.shift(solution.ties.of[result]).any():
            continue
        taker = _summing(result, set(gone), solution)
        if taker is None and is_centred(node):  # another map would do in one step what is done in two
            taker = next(iter(readers(result)), None)
        if taker is not None:
            found[node] = (
                f"it removes an offset {offset_in(node):.2g} times the size of its results: without it the sums of "
                f"{describe(taker)} would lose that factor of precision; centre the data in front of the network"
            )
    return found


def _summing(value: ir.Value, gone: set[ir.Node], solution: Solution) -> ir.Node | None:
    """Return an operator that computes with a shifted value, or with what moves and maps that go, too, make of it."""
    values = [value]
    while values:
        value = values.pop()
        gauge = solution.ties.of.get(value)
        for reader in readers(value) if gauge is not None and solution.shift(gauge).any() else ():
            if reader in gone or has(reader, Trait.MOVES | Trait.JOINS):
                values += reader.outputs
            elif not is_affine(reader) and not is_standard(reader, *_BLIND):
                return reader
    return None


def burdens(gone: Sequence[ir.Node], solution: Solution) -> dict[ir.Node, str]:
    """Return the maps for which what several read carries more than :data:`LARGEST` times its size, and how much."""
    found: dict[ir.Node, str] = {}
    for node in gone:
        carried = [solution.shift(solution.ties.of[value]) for value in _shared(node, solution)]
        if not carried:
            continue
        factor = affine_map(node).scale
        with np.errstate(divide="ignore"):
            unit = float(np.median(1 / np.abs(factor)))
        (*others, origin) = origins_of(node) or [None]
        if origin is not None and not others and DEVIATION in origin.detail:
            unit = min(unit, float(origin.detail[DEVIATION]))
        size = max(float(np.sqrt(np.square(shift).mean())) for shift in carried)
        if size <= LARGEST * unit:
            continue
        own = solution.shift(solution.ties.operand(node, 0))  # what several read may be some of the map's channels
        off = np.flatnonzero((factor == 0) & (own != 0))
        if off.size:
            found[node] = (
                f"channel {off[0]} ({off.size} in all) is scaled by 0, and what others read in front of it would have "
                "to carry its shift over 0"
            )
        else:
            found[node] = (
                f"what others read in front of it would have to carry {size / unit:.2g} times the size of its "
                "values, and be rounded with it"
            )
    return found


def _shared(node: ir.Node, solution: Solution) -> Iterator[ir.Value]:
    """Yield the nearest values in front of a map that several read, and that carry a shift for it; of each part one."""
    queue, seen = [*node.inputs[:1]], set[ir.Value]()
    while queue:
        value = queue.pop(0)
        gauge = None if value is None else solution.ties.of.get(value)
        if value is None or value in seen or gauge is None or not solution.shift(gauge).any():
            continue
        seen.add(value)
        if len(readers(value)) > 1:
            yield value
            continue
        producer = value.producer()
        rule = None if producer is None else rule_of(producer)
        if producer is not None and rule is not None and not rule.absorbs and producer not in solution.ties.parts:
            queue += producer.inputs
