"""What is known of the two graphs: which value of the file stands for which of the source."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.graph import FLOATS, compress
from normdeploy.verification.derivation.gauges import Claim, ScaledValue, ranked
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.side.affine_laws import back
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.zero_guards import guard_beside, smaller_guard

_NEAR = 48
"""How many values of the source are looked at behind what an operator reads, where no hint says which it is."""


@dataclass(frozen=True)
class Target(ScaledValue):
    """What a value of the file may stand for: w = scale * value + shift.

    Args:
        value: w. scale, shift: of w's rank. hinted: the derivation says so.
        rows: the value of the file holds w's rows, in another shape.
    """

    hinted: bool = False
    rows: bool = False


@dataclass(frozen=True)
class Proof:
    """An identity that holds for all inputs.

    Args:
        kind: of the identity, in words. claims: what it shows, by the file's value, with the source's value.
        nodes: the file's operators in it.
    """

    kind: str
    claims: tuple[tuple[ir.Value, Claim], ...]
    nodes: tuple[ir.Node, ...] = ()


Finding = Proof | Wrong | str
"""A proof; a stored number that is wrong where all else fits; or why there is no proof ("" for another operator)."""


Moved = tuple[Floats, Floats, Floats]
"""Scale, shift and what is lost of a result that was moved."""


@dataclass
class Relation:
    """Claims that hold, by the source's value and by the file's.

    Args:
        source, file: the graphs.
        by_source, by_file: claims about values of one shape, by either. rows, in_rows: claims about rows, by either.
        again, in_again: claims about what begins again along an axis, by either.
        further: looks for a claim where none is known.
        unrounded: computes what follows from constants and sizes, at one assignment, from unrounded constants.
        moved: of two ways of moving, by all that they depend on: the result's rank, and whether constants are joined to
            it; None where elements land elsewhere.
        moved_gauges: of the result, by the same and by the gauges of what is moved.
        twins: values of the source that are the same, by each: what stands for one stands for all.
    """

    source: Side
    file: Side
    by_source: dict[ir.Value, list[Claim]] = field(default_factory=dict)
    by_file: dict[ir.Value, list[tuple[ir.Value, Claim]]] = field(default_factory=dict)
    rows: dict[ir.Value, list[Claim]] = field(default_factory=dict)
    in_rows: dict[ir.Value, list[tuple[ir.Value, Claim]]] = field(default_factory=dict)
    again: dict[ir.Value, list[Claim]] = field(default_factory=dict)
    in_again: dict[ir.Value, list[tuple[ir.Value, Claim]]] = field(default_factory=dict)
    further: Callable[[Relation, ir.Value, ir.Value], Claim | None] | None = None
    unrounded: Callable[[ir.Value, int], Array | None] | None = None
    moved: dict[Hashable, tuple[int, bool] | None] = field(default_factory=dict)
    moved_gauges: dict[Hashable, Moved] = field(default_factory=dict)
    twins: Mapping[ir.Value, Sequence[ir.Value]] = field(default_factory=dict)
    _looked: set[tuple[ir.Value, ir.Value]] = field(default_factory=set)

    def add(self, w: ir.Value, claim: Claim) -> bool:
        """Take a claim; return whether it is new, or of the kind that was only assumed."""
        for twin in self.twins.get(w, ()):
            self._take(twin, claim)
        return self._take(w, claim)

    def _take(self, w: ir.Value, claim: Claim) -> bool:
        rank = self.rank(w)
        scale, shift = (None if rank is None else ranked(compress(array), rank) for array in (claim.scale, claim.shift))
        if scale is None or shift is None or not self._fit(w, claim):
            return False  # elements of another shape are not those of w, whatever they are
        again = (
            None if claim.again is None or scale.shape[claim.again] == shift.shape[claim.again] == 1 else claim.again
        )
        lost = ranked(compress(np.asarray(claim.lost, np.float64)), rank or 0)
        claim = replace(claim, scale=scale, shift=shift, again=again, lost=np.max(claim.lost) if lost is None else lost)
        by_source, by_file = (self.rows, self.in_rows) if claim.rows else (self.by_source, self.by_file)
        if claim.again is not None:
            by_source, by_file = self.again, self.in_again
        held = by_source.setdefault(w, [])
        for old in held:
            if old.value is claim.value and (claim.assumed or not old.assumed):
                return False
        held[:] = [old for old in held if old.value is not claim.value] + [claim]
        known = by_file.setdefault(claim.value, [])
        known[:] = [pair for pair in known if pair[0] is not w] + [(w, claim)]
        return True

    def _fit(self, w: ir.Value, claim: Claim) -> bool:
        """Tell whether a claim is about values whose shapes and types allow it: one number overflows in fewer bits."""
        types = self.source.type_of(w), self.file.type_of(claim.value)
        if None not in types and types[0] != types[1]:
            return False
        if not claim.rows:
            return self.source.shapes(w) == self.file.shapes(claim.value)
        along = all(n == 1 for array in (claim.scale, claim.shift) for n in array.shape[:-1])
        return along and self.same_rows(w, claim.value)

    def same_rows(self, w: ir.Value, v: ir.Value) -> bool:
        """Tell whether a value of the file may hold the rows of one of the source, along the last axis, and no others.

        Where sizes vary nothing is said: which rows are the same at all sizes is not followed.
        """
        ours, theirs = self.source.shapes(w), self.file.shapes(v)
        if not (self.source.one_size and self.file.one_size) or w in self.source.opened or v in self.file.opened:
            return False
        if (
            len(ours) != 1
            or len(theirs) != 1
            or not ours[0]
            or not theirs[0]
            or ours[0][-1] != theirs[0][-1]
            or ours == theirs
        ):
            return False
        numbers = [side.type_of(value) in FLOATS for side, value in ((self.source, w), (self.file, v))]
        return math.prod(ours[0]) == math.prod(theirs[0]) > 0 and numbers[0] == numbers[1]

    def rank(self, w: ir.Value) -> int | None:
        """Return the rank of a value of the source."""
        shapes = self.source.shapes(w)
        return len(shapes[0]) if shapes else None

    def alike(self, w: ir.Value, v: ir.Value) -> bool:
        """Tell whether a value of the source and one of the file have one shape at every assignment, and one type."""
        shapes = self.source.shapes(w)
        numbers = [side.type_of(value) in FLOATS for side, value in ((self.source, w), (self.file, v))]
        return bool(shapes) and shapes == self.file.shapes(v) and numbers[0] == numbers[1]

    def express(self, w: ir.Value, *, rows: bool = False, by: ir.Value | None = None) -> Iterator[Claim]:
        """Return claims for a value of the source, or for its rows, through the affine maps in front of it.

        Args:
            w: of the source. rows: the claims about its rows. by: the value of the file they are to be about; any.
        """
        held = self.rows if rows else self.by_source
        for step in back(self.source, w):
            rank = self.rank(w)
            for claim in held.get(step.value, ()):
                if by is not None and claim.value is not by:
                    continue
                if step.is_nothing:
                    yield claim
                elif rank is not None:
                    scale, shift = ranked(step.scale, rank), ranked(step.shift, rank)
                    if scale is not None and shift is not None:
                        guard = guard_beside(self.source, w, shift, scale * claim.shift)
                        least = float(np.abs(scale).min()) if scale.size else 1.0  # a map of no element scales none
                        guard = smaller_guard(step.guard, claim.guard * least, guard)
                        moved = claim.then(scale, shift)
                        summed = None if step.cancelled is None else ranked(step.cancelled, rank)
                        yield replace(moved, guard=guard, terms=moved.terms + (0.0 if summed is None else summed))

    def by(self, w: ir.Value | None, v: ir.Value | None) -> Claim | None:
        """Return the claim for a value of the source in terms of one of the file, confirmed ones first."""
        if w is None or v is None:
            return None
        found = self.known(w, v)
        if found is None and self.further is not None and self.alike(w, v) and (w, v) not in self._looked:
            self._looked.add((w, v))
            claim = self.further(self, w, v)
            if claim is not None and self.add(w, claim):
                return self.by(w, v)
        return found

    def known(self, w: ir.Value, v: ir.Value, *, rows: bool = False) -> Claim | None:
        """Return the claim that is there, about the values or about rows, without looking further."""
        if v not in (self.in_rows if rows else self.by_file):  # as most values are asked about that a target might be
            return None
        return min(self.express(w, rows=rows, by=v), key=lambda claim: claim.assumed, default=None)

    def beginning_again(self, w: ir.Value | None, v: ir.Value | None) -> Claim | None:
        """Return the claim that a value of the source begins again along an axis, in terms of one of the file."""
        held = () if w is None else self.again.get(w, ())
        return min((claim for claim in held if claim.value is v), key=lambda claim: claim.assumed, default=None)

    def near(self, values: list[ir.Value]) -> list[ir.Value]:
        """Return values of the source that are computed from what values of the file stand for, nearest first.

        Where these follow from sizes: those that are computed of such values, and do not follow from them.
        """
        seen: dict[ir.Value, None] = {}
        queue = [w for v in values for held in (self.by_file, self.in_again) for w, _ in held.get(v, ())]
        if not queue and all(map(self.file.is_sized, values)):
            for node in self.source.nodes:
                if all(value is None or self.source.is_sized(value) for value in node.inputs):
                    queue += [value for value in node.outputs if not self.source.is_sized(value)][: _NEAR - len(queue)]
            seen = dict.fromkeys(queue)
        for w in queue:
            for usage in w.uses():
                for output in usage.node.outputs:
                    if output not in seen and len(seen) < _NEAR:
                        seen[output] = None
                        queue.append(output)
        return list(seen)


def identity(w: ir.Value, rank: int) -> Target:
    """Return the target of a value that is the source's."""
    return Target(w, np.ones((1,) * rank), np.zeros((1,) * rank))
