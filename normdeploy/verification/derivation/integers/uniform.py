"""Quantizers of numbers, written in any way: QuantizeLinear and DequantizeLinear, arithmetic, QONNX's operators.

Brought to one form, step (clamp(round(x / step), low, high) + shift): a clamp to integers may stand on either side of
the rounding, and an even integer may be added on either side (halves go to the even one). Equal forms of what is equal
are equal for every input. Comparisons are compared by their bound and their two values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.operators.qonnx import DOMAINS
from normdeploy.verification.derivation.gauges import Claim, noise_of
from normdeploy.verification.derivation.integers.forward_functions import as_function, ends
from normdeploy.verification.derivation.integers.known_integers import Known
from normdeploy.verification.derivation.integers.paths import Path
from normdeploy.verification.derivation.integers.stepwise import Cut, Decided, Scaled, Step
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_LONGEST = 8
"""Operators that a quantizer is written in, at most."""


@dataclass(frozen=True)
class _Form:
    """unit (clamp(decide(x times / by + add), low, high) + shift)."""

    decide: Decided
    times: Floats
    by: Floats
    add: Floats
    low: Floats
    high: Floats
    shift: Floats
    unit: Floats

    def ends(self) -> tuple[Floats, Floats]:
        """Return the values of levels 0 and 1."""
        return self.unit * self.shift, self.unit * (1 + self.shift)


def confirm_quantizer(relation: Relation, value: ir.Value, target: Target) -> Finding:
    """Confirm a value of the file as the result of one of QONNX's quantizers."""
    origin = target.value.producer()
    if origin is None or origin.domain not in DOMAINS or (target.scale != 1).any() or target.shift.any():
        return ""
    x = inputs_of(origin)[0]
    for v in _behind(relation.file, value):
        claim = relation.by(x, v)
        if x is None or claim is None or not claim.is_identity:
            continue
        ours, theirs = _form(relation.source, x, target.value), _form(relation.file, v, value)
        if ours is None or theirs is None:
            return f"{kind(origin)}: how it rounds, or its step, is not followed"
        if not _alike(ours[0], theirs[0]):
            return f"{kind(origin)}: another step, zero point or range"
        known = Claim(value, target.scale, target.shift, claim.assumed)
        return Proof("the same quantizer", ((target.value, known),), theirs[1])
    return f"what {kind(origin)} reads is not known to be what the source's reads"


def quantized(relation: Relation, value: ir.Value) -> Iterator[tuple[ir.Value, Known, tuple[ir.Node, ...]]]:
    """Return what integers stand for that the file makes of numbers: quantizers of the source of the same numbers."""
    for v in _behind(relation.file, value):
        for w, claim in relation.by_file.get(v, ()):
            theirs = _form(relation.file, v, value) if claim.is_identity else None
            if theirs is None or (theirs[0].unit != 1).any() or theirs[0].decide.kind != "round":
                continue
            for end in ends(relation.source, _start(relation.source, w)):
                ours = None if end.choice is not None else _canonical(end.path.steps)
                if ours is None or not _alike(ours, replace(theirs[0], shift=ours.shift)) or ours.shift.size > 1:
                    continue
                zero = end.zero + (theirs[0].shift - ours.shift).reshape(-1)
                if zero.size == 1 and zero[0] % 1 == 0:
                    yield end.value, Known(value, end.step, int(zero[0]), end.exact, claim.assumed), theirs[1]


def _behind(side: Side, value: ir.Value) -> Iterator[ir.Value]:
    """Return what a value is computed from, by operators of one operand that varies."""
    for _ in range(_LONGEST):
        node = value.producer()
        varying = [] if node is None else [v for v in inputs_of(node) if v is not None and not side.is_constant(v)]
        if len(varying) != 1:
            return
        value = varying[0]
        yield value


def _form(side: Side, start: ir.Value, value: ir.Value) -> tuple[_Form, tuple[ir.Node, ...]] | None:
    found = as_function(side, _start(side, start), value)
    form = None if found is None else _canonical(found.steps)
    return None if form is None or found is None else (form, _between(side, start, value))


def _start(side: Side, value: ir.Value) -> Path:
    """Return a value as a function of itself, its channels along axis 1."""
    shapes = side.shapes(value)
    rank = len(shapes[0]) if shapes else 0
    axis = 1 - rank if rank > 1 else None
    sizes = set() if axis is None else {shape[axis] for shape in shapes}
    return Path(value, (), rank, axis, sizes.pop() if len(sizes) == 1 else 1)


def _between(side: Side, start: ir.Value, value: ir.Value) -> tuple[ir.Node, ...]:
    nodes = []
    while value is not start:
        node = value.producer()
        assert node is not None
        nodes.append(node)
        value = next(v for v in inputs_of(node) if v is not None and not side.is_constant(v))
    return tuple(nodes)


def _canonical(steps: Sequence[Step]) -> _Form | None:
    """Return the one form of a quantizer's steps; None where they are none."""
    places = [index for index, step in enumerate(steps) if isinstance(step, Decided)]
    if len(places) != 1:
        return None
    decide = steps[places[0]]
    assert isinstance(decide, Decided)
    times, by, add = np.ones(1), np.ones(1), np.zeros(1)
    low, high = np.full(1, -np.inf), np.full(1, np.inf)
    for step in steps[: places[0]]:
        if isinstance(step, Scaled) and np.isinf(low).all() and np.isinf(high).all():
            plain = (step.times == 1).all() and (step.by == 1).all()
            if not plain and add.any():
                return None
            times, by, add = times * step.times, by * step.by, add + step.add
        elif isinstance(step, Cut) and decide.kind == "round":
            low, high = _cut(step, low, high)
        else:
            return None
    if any((part[np.isfinite(part)] % 1).any() for part in (low, high)):
        return None
    shift, unit = np.zeros(1), np.ones(1)
    if decide.kind == "round" and not (add % 2).any():
        low, high, shift, add = low - add, high - add, add, np.zeros(1)
    for step in steps[places[0] + 1 :]:
        if isinstance(step, Scaled):
            shift, unit = shift + step.add / (unit * step.times / step.by), unit * step.times / step.by
        elif isinstance(step, Cut) and (unit == 1).all():
            cut = _cut(step, low + shift, high + shift)
            low, high = cut[0] - shift, cut[1] - shift
        else:
            return None
    return _Form(decide, times, by, add, low, high, shift, unit)


def _cut(step: Cut, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    if step.low is not None:
        low, high = np.maximum(low, step.low), np.maximum(high, step.low)
    if step.high is not None:
        low, high = np.minimum(low, step.high), np.minimum(high, step.high)
    return low, high


def _alike(a: _Form, b: _Form) -> bool:
    if a.decide != b.decide or not all(_same(x, y) for x, y in ((a.times, b.times), (a.by, b.by), (a.add, b.add))):
        return False
    if a.decide.kind == "round":
        pairs = ((a.low, b.low), (a.high, b.high), (a.shift, b.shift), (a.unit, b.unit))
        return all(_same(x, y) for x, y in pairs)
    return all(_same(x, y, noisy=True) for x, y in zip(a.ends(), b.ends(), strict=True))


def _same(a: Floats, b: Floats, *, noisy: bool = False) -> bool:
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        return False
    with np.errstate(invalid="ignore"):
        return bool(((a == b) | (noisy & (np.abs(a - b) <= noise_of(np.abs(a))))).all())
