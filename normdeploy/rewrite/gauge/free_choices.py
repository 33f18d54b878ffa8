"""The unknowns that nothing determines take the value that changes least.

Wherever an operator with weights reads or writes a value, it votes for the gauge under which it stays as it is there.
For each free unknown the value with most votes wins; among equals the one furthest behind: a map between two linear
operators goes into the one in front of it. Around a map that scales by 0 not every value will do
(:mod:`.scales_of_zero`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.operator_inputs import optional, required
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.gauge.equations.expression_rows import Ints
from normdeploy.rewrite.gauge.equations.signs import Flags8
from normdeploy.rewrite.gauge.equations.substitute import roots, values
from normdeploy.rewrite.gauge.equations.system import System
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.oriented_product import Product, product_of
from normdeploy.rewrite.gauge.rules.products import handed_on
from normdeploy.rewrite.gauge.scales_of_zero import (
    Bools,
    Every,
    allowed_scales,
    allowed_shifts,
    left_behind,
    scales_by_zero,
    sides_of,
)
from normdeploy.rewrite.gauge.ties import Ties

_COPY = 100.0
"""Weight of a vote where a changed weight would be a second copy of it."""

_NEW_ADD = 1000.0
"""Weight of a vote where a shift would need a new operator."""

_STAYS = 0.5
"""Weight of a vote of a map that stays: it costs its pass anyhow."""

_NEAR = 1e-14
"""A scale this near to 1 is 1: the rest is the rounding of a product of maps."""


@dataclass
class _Votes:
    """Votes for unknowns, as arrays to be joined."""

    unknowns: list[np.ndarray] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    places: list[float] = field(default_factory=list)
    values: dict[int, Floats] = field(default_factory=dict)

    def cast(self, unknowns: np.ndarray, weight: float, place: int, value: Floats | None = None) -> None:
        """Vote for what is neutral, or for shifts of some value."""
        if value is not None:
            self.values[len(self.unknowns)] = value.reshape(-1)
        self.unknowns.append(unknowns.reshape(-1))
        self.weights.append(weight)
        self.places.append(float(place))

    def joined(self) -> tuple[np.ndarray, Floats, Floats, Floats]:
        """Return the unknowns that were voted for, the weights and the places of the votes, and shifts."""
        counts = [len(part) for part in self.unknowns]
        unknowns = np.concatenate(self.unknowns)
        live, shifts = np.flatnonzero(unknowns), np.zeros(len(unknowns))
        for at, value in self.values.items():
            start = sum(counts[:at])
            shifts[start : start + counts[at]] = value
        return unknowns[live], np.repeat(self.weights, counts)[live], np.repeat(self.places, counts)[live], shifts[live]


def choose(ties: Ties) -> Solution:
    """Return the gauges of a graph."""
    scales, shifts, bare = _Votes(), _Votes(), dict[int, Product]()
    for place, node in enumerate(ties.nodes):
        rule = rule_of(node)
        for index in range(len(node.inputs)):
            if (node, index) in ties.ports and not (rule is not None and rule.absorbs):
                weight = _COPY if len(node.inputs[index].uses()) > 1 else 1.0  # type: ignore[union-attr] # a port
                _vote(scales, shifts, ties.ports[node, index], weight, weight, place)
        if rule is None or not rule.absorbs:
            continue
        product = product_of(node) if node.op_type == "MatMul" else None
        if product is not None and product.addend is None:
            bare[place] = product
        scale_weight, shift_weight = _weights(node, bare=place in bare)
        for value in sides_of(node):
            gauge = None if value is None else ties.of.get(value)
            if gauge is not None:
                _vote(scales, shifts, gauge, scale_weight, shift_weight, place)
        for index in (-1, -2):
            if (node, index) in ties.ports:
                _vote(scales, shifts, ties.ports[node, index], scale_weight, 0.0, place)
    noughts = scales_by_zero(ties)
    found_shifts = values(ties.shifts, _elected(ties.shifts, shifts, allowed_shifts if noughts else None))
    if _spare_adds(ties, bare, found_shifts, shifts):
        found_shifts = values(ties.shifts, _elected(ties.shifts, shifts, allowed_shifts if noughts else None))
    allowed: _Allowed | None = None
    if noughts:
        divided = left_behind(noughts, ties, found_shifts)
        scales.cast(divided[1], _COPY, len(ties.nodes))  # by one 0 is divided, and by none behind it

        def allowed(free: Ints, wanted: Floats, every: Every) -> Bools:
            return allowed_scales(ties, divided, free, wanted, every)

    found = values(ties.scales, _elected(ties.scales, scales, allowed))
    return Solution(ties, np.where(np.abs(found - 1) <= _NEAR, 1.0, found), found_shifts)


def _spare_adds(ties: Ties, bare: Mapping[int, Product], found: Floats, votes: _Votes) -> bool:
    """Vote, where a product without a bias reads a shift, for handing on what it makes of it; tell whether one did.

    Its vote for no shift behind it counted on none in front of it.

    Args:
        ties: the unknowns.
        bare: products without a bias, by place.
        found: value of every T that was elected. votes: get further ones.
    """
    before = len(votes.unknowns)
    for place, product in bare.items():
        front, behind = ties.of.get(required(product.node, product.x)), ties.of.get(product.result)
        if front is None or behind is None or not (behind.shift_of.all() and found[front.shift_of].any()):
            continue
        made = handed_on(product, front.factor * found[front.shift_of])
        if np.broadcast_shapes(made.shape, behind.cells) == behind.cells:
            votes.cast(behind.shift_of, 2 * _NEW_ADD, place, np.broadcast_to(made, behind.cells) / behind.factor)
    return len(votes.unknowns) > before


def _weights(node: ir.Node, *, bare: bool) -> tuple[float, float]:
    """Return how much an operator minds a scale, and how much a shift; ``bare`` for a product without a bias."""
    if node.op_type == "Affine":
        return _STAYS, _STAYS
    weight = fixed_weight(optional(node, 1))
    shared = weight is not None and len(weight.stored.uses()) > 1
    return _COPY if shared else 1.0, _NEW_ADD if bare else 1.0


def _vote(scales: _Votes, shifts: _Votes, gauge: Gauge, scale: float, shift: float, place: int) -> None:
    if scale:
        scales.cast(gauge.scale_of, scale, place)
    if shift:
        shifts.cast(gauge.shift_of, shift, place)


_Allowed = Callable[[Ints, Floats, Every], Bools]
"""Tells of free unknowns, a value for each and what every unknown is, which of the values may be taken."""


def _elected(system: System, votes: _Votes, allowed: _Allowed | None) -> Floats:
    """Return a value for every unknown, of which those of free ones count."""
    candidates = _candidates(system, votes, allowed)
    if not system.multiplicative:
        return _won(candidates, np.zeros(system.size))
    chosen = _won(candidates, np.ones(system.size), system.signs.known[: system.size])
    if not system.signs.any_tied:
        return chosen
    signs = system.signs.settled(np.sign(chosen).astype(np.int8))
    if (signs * chosen > 0).all():  # what has won has its sign already
        return chosen
    return _won(candidates, np.ones(system.size), signs)


_Candidates = tuple[Ints, Floats, Floats, Floats]
"""Free unknowns, with a value that is voted for, the weight and the place of the vote."""


def _candidates(system: System, votes: _Votes, allowed: _Allowed | None) -> _Candidates | None:
    if not votes.unknowns:
        return None
    unknowns, weights, places, shifts = votes.joined()
    root, coefficients, constants = roots(system)
    free, coefficient, constant = root[unknowns], coefficients[unknowns], constants[unknowns]
    single = (free > 0) & ((np.abs(coefficient) == 1) if system.multiplicative else (coefficient != 0))
    free, coefficient, constant = free[single], coefficient[single], constant[single]
    if system.multiplicative:
        wanted = np.where(coefficient == 1, 1.0 / constant, constant)
    else:
        wanted = (shifts[single] - constant) / coefficient
    if allowed is None:
        return free, wanted, weights[single], places[single]
    kept = allowed(free, wanted, (root, coefficients, constants))
    return free[kept], wanted[kept], weights[single][kept], places[single][kept]


def _won(votes: _Candidates | None, chosen: Floats, signs: Flags8 | None = None) -> Floats:
    """Return the values that are most voted for, of those that have a sign that is required; else the ones given."""
    if signs is not None:
        chosen = np.where(signs < 0, -chosen, chosen)
    if votes is None:
        return chosen
    free, candidates, weights, places = votes
    if signs is not None:
        required = signs[free]
        fit = (required == 0) | (np.sign(candidates) == required)
        if not fit.all():
            free, candidates, weights, places = free[fit], candidates[fit], weights[fit], places[fit]
    if not len(free):
        return chosen
    count, at = np.bincount(free, minlength=len(chosen)), np.arange(len(free))
    first, last = np.zeros((2, len(chosen)), np.int64)
    first[free[::-1]], last[free] = at[::-1], at
    few = np.flatnonzero((count > 0) & (count <= 2))  # nearly all: these need not be sorted
    one, two = (tuple(part[ends[few]] for part in (candidates, weights, places)) for ends in (first, last))
    near = np.abs(one[0] - two[0]) <= 1e-9 * np.maximum(np.abs(one[0]), np.abs(two[0]))
    behind = (two[2] > one[2]) | ((two[2] == one[2]) & (two[0] > one[0]))
    later = ~near & ((two[1] > one[1]) | ((two[1] == one[1]) & behind))
    chosen[few] = np.where(later, two[0], one[0])
    several = np.flatnonzero(count[free] > 2)
    if not len(several):
        return chosen
    order = several[np.argsort(candidates[several])]
    number = (np.cumsum(count > 2) - 1)[free[order]]  # small integers are sorted by their digits
    order = order[np.argsort(number.astype(np.uint16) if number.max() < 1 << 16 else number, kind="stable")]
    free, candidates, weights, places = free[order], candidates[order], weights[order], places[order]
    other = np.concatenate([[True], np.diff(free) != 0])
    near = np.abs(np.diff(candidates)) <= 1e-9 * np.maximum(np.abs(candidates[1:]), np.abs(candidates[:-1]))
    starts = np.flatnonzero(other | np.concatenate([[True], ~near]))
    firsts = np.flatnonzero(other[starts])
    counts, best = np.diff(firsts, append=len(starts)), np.ones(len(starts), bool)
    for size in (np.add.reduceat(weights, starts), np.maximum.reduceat(places, starts), candidates[starts]):
        size = np.where(best, size, -np.inf)
        best &= size == np.repeat(np.maximum.reduceat(size, firsts), counts)
    chosen[free[starts[best]]] = candidates[starts[best]]
    return chosen
