"""Integers that the file computes of sums against a quantizer of the source, on every integer of the sums' range.

The file's operators are one number on each of the intervals that cover the range (:mod:`.on_intervals`). The source's
function is monotone (:mod:`.stepwise`): if both ends of an interval have that number, all between have it.

Where constants of the source are not exact in float64 (the scale of a BatchNormalization), a sum whose value lies
within float64's noise of a tie may have either level. Everywhere else it has to be the one.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.verification.derivation.integers.known_integers import Known
from normdeploy.verification.derivation.integers.on_intervals import Pieces
from normdeploy.verification.derivation.integers.paths import End
from normdeploy.verification.derivation.integers.stepwise import Ints, Scaled, levels
from normdeploy.verification.derivation.related.stored_rounding import Wrong

_FEW = 0.1
"""Share of intervals with another level up to which a quantizer is this one, and wrong."""

_SOME = 64
"""Intervals that are looked at before all are."""


def compare_levels(value: ir.Value, cut: Pieces, end: End, *, assumed: bool) -> tuple[Known, Wrong | None] | None:
    """Return what the integers stand for, and where they are not the quantizer's; None where that is at many places.

    Args:
        value: of the file. cut: what it is of its leaf. end: the source's quantizer of the same leaf.
        assumed: that the leaf is the same is not confirmed.
    """
    further = () if end.path.pooled is None else end.path.steps[end.path.pooled :]
    if any(isinstance(step, Scaled) and not step.rises for step in further):
        return None  # the largest of a pool is not the largest of what falls
    some = np.unique(np.linspace(0, len(cut.value) - 1, _SOME).astype(np.int64))
    found = _Match.of(_some(cut, some), end)
    if found is None or found.bad.mean() > 2 * _FEW:
        return None
    found = _Match.of(cut, end)
    if found is None or found.bad.mean() > _FEW:
        return None
    known = found.known(value, end, assumed=assumed or bool(found.bad.any()))
    if known is None or not found.bad.any():
        return None if known is None else (known, None)
    place = int(np.flatnonzero(found.bad)[0])
    text = (
        f"{value.name!r} is {cut.value[place]} where what it is computed from is {cut.low[place]} to {cut.high[place]} "
        f"in channel {cut.channel[place]}; expected {found.expected[place]}"
    )
    return known, Wrong(text)


def _some(cut: Pieces, places: Ints) -> Pieces:
    return Pieces(cut.channel[places], cut.low[places], cut.high[places], cut.value[places])


class _Match:
    """Levels of the source beside integers of the file.

    Args:
        zero, one: the integers that stand for level 0 and 1; others follow.
        expected: the integer at each interval's low end. bad: intervals that have another one at either end.
    """

    def __init__(self, zero: int, one: int, expected: Ints, bad: npt.NDArray[np.bool_]) -> None:
        self.zero, self.one, self.expected, self.bad = zero, one, expected, bad

    @staticmethod
    def of(cut: Pieces, end: End) -> _Match | None:
        """Return the comparison; None where no integers stand for the levels."""
        steps = end.path.steps
        at_low, at_high = levels(steps, cut.low, cut.channel), levels(steps, cut.high, cut.channel)
        if end.choice is None:
            shift = _usual(cut.value - at_low[0])
            zero, one = shift, shift + 1
        else:
            off, on = at_low[1] == 0, at_low[0] == 1
            if not off.any() or not on.any():
                return None
            zero, one = _usual(cut.value[off]), _usual(cut.value[on])
            if zero == one:
                return None
        unit = one - zero
        bounds = [np.sort(np.stack([zero + unit * part for part in pair]), axis=0) for pair in (at_low, at_high)]
        bad = np.zeros(len(cut.value), bool)
        for low, high in bounds:
            bad |= (cut.value < low) | (cut.value > high)
            bad |= (cut.value - zero) % unit != 0
        return _Match(zero, one, zero + unit * at_low[0], bad)

    def known(self, value: ir.Value, end: End, *, assumed: bool) -> Known | None:
        """Return what the integers stand for; None where that is no integer times a step."""
        if end.choice is None:
            zero = end.zero + self.zero
            return Known(value, end.step, int(zero), end.exact, assumed) if zero % 1 == 0 else None
        off, on = (Fraction(number) for number in end.choice)
        step = (on - off) / (self.one - self.zero)
        if step == 0 or (off / step).denominator != 1:
            return None
        return Known(value, float(step), int(self.zero - off / step), Fraction(float(step)) == step, assumed)


def _usual(numbers: Ints) -> int:
    found, counts = np.unique(numbers, return_counts=True)
    return int(found[counts.argmax()])
