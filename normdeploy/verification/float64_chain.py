r"""The float64 chain from the reference to the stored numbers: what is known of the file, and of one family.

Its links are checked in :mod:`normdeploy.verification.checks.traced`. Where all hold, a difference far below float32's
rounding of the whole network would have shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from normdeploy.array_types import Array, Floats
from normdeploy.verification.record.answers import Check

EXACT = 1e-9
"""Largest RMS(difference)/RMS(value) between two float64 graphs of one function: far above float64's rounding in any
network that float32 can run, far below one float32 rounding (6e-8)."""

FINEST = 1e-13
"""Nothing finer than this relative difference is claimed to be seen in float64."""

ROUNDED_ONCE = 8.0
"""Ratio to the spread of a few random roundings up to which a file of numbers known to be rounded once may differ."""

ROUNDED_OTHERWISE = 20 * ROUNDED_ONCE
"""The same where each is known to within another order of rounding, which is up to twenty half units
(:mod:`normdeploy.verification.derivation.related.stored_rounding`)."""

OTHER_ROUNDING = 20 * 2.0**-24
"""The relative difference that it makes to such a number in float32."""

FLOAT64_NOISE = 64 * 2.0**-53
"""Float64's own rounding of a network, over one unit of the noise model."""


@dataclass
class Chain:
    """What is known of one family in float64 (:mod:`normdeploy.verification.checks.traced`).

    Args:
        traced: outputs of the reference's graph.
        moved: yields the spread by the rounding of stored constants alone, per output: with each of the first runs what
            it is at least, whatever those that are left show, and then what it is by all that were made.
        enough: how many runs the first are.
        resolution: measured relative difference of the traced graph from the module, per output.
    """

    traced: list[Array]
    moved: Iterator[list[Floats]]
    enough: int
    resolution: list[float] = field(default_factory=list)
    _least: list[Floats] = field(default_factory=list)
    _asked: int = 0

    def measure(self) -> bool:
        """Make one more run; False where all were made."""
        self._asked += 1
        found = next(self.moved, None)
        self._least = self._least if found is None else found
        return found is not None

    @property
    def least(self) -> list[Floats]:
        """The spread by the rounding of stored constants, as far as the runs made so far show it."""
        if not self._least:
            self.measure()
        return self._least

    @property
    def spread(self) -> list[Floats]:
        """The spread by the rounding of stored constants, by enough runs."""
        while self._asked <= self.enough and self.measure():  # before the first, nothing moved
            pass
        return self.least


@dataclass(frozen=True)
class Links:
    """What the links say of the file.

    Args:
        checks: their answers. traced: nothing was found between the module and its traced graph.
        hold: that, and the file is confirmed for every input, so that the chain can show a mutant.
        nearly: the same, but for last digits of its numbers, which another order of rounding explains.
    """

    checks: tuple[Check, ...] = ()
    traced: bool = True
    hold: bool = False
    nearly: bool = False

    @property
    def limit(self) -> float:
        """Ratio to the spread of a few random roundings up to which the file as a whole may differ in float64."""
        return ROUNDED_ONCE if self.hold else ROUNDED_OTHERWISE if self.nearly else 1.0
