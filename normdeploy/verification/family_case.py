"""A case: one input family with its float64 truth, eager's result, and what rounding explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from normdeploy.array_types import Array, Floats
from normdeploy.errors import GraphError
from normdeploy.verification.bounds.criteria import CONSTANTS, Bounds, Constants, rms
from normdeploy.verification.bounds.decisions import Ties
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.bounds.spread import Measure, Spread
from normdeploy.verification.float64_chain import EXACT, FINEST, FLOAT64_NOISE, Chain
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.ensemble import EnsembleReference, ensemble
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import SMALLEST_NORMAL, UNIT_ROUNDOFF, Feeds
from normdeploy.verification.sides.two_sides import EagerReference, Reference

_BY_ACCIDENT = 1 / 16
"""An RMS error of eager's below this share of u times the size of the output says nothing of its rounding."""

_LOOKS = 4
"""Runs that look for ties ahead of S, which takes about as many; and all of them once the verdict is a failure."""


@dataclass
class Case:
    """One input family, evaluated on the reference.

    Args:
        family: the inputs.
        names: output names.
        truth: float64 outputs (integers and booleans as they are).
        eager: outputs in the reference's own precision.
        rounding: S per output, measured when it is asked for.
        precision: the float dtype whose rounding is judged.
        noisy: the reference graph, for tie decisions; None where there is no graph.
        seed: of the noise that finds ties.
        chain: what is known of it in float64; None where the links were not followed.
        settled: tells whether the verdict is a failure, whatever this case shows: then few runs look for ties.
        looked: where ties were looked for; None begins anew.
    """

    family: Family
    names: Sequence[str]
    truth: list[Array]
    eager: list[Array]
    rounding: Spread
    precision: str
    noisy: NoisyGraph | None
    seed: int = 0
    constants: Constants = CONSTANTS
    chain: Chain | None = None
    settled: Callable[[], bool] = bool
    looked: Ties | None = None

    def by(self, constants: Constants) -> Case:
        """Return the case judged by other constants, with the ties found for both."""
        return replace(self, constants=constants, looked=self._ties)

    @property
    def spread(self) -> list[Array]:
        """S per output, pointwise; zeros where not a float."""
        return self.rounding.values

    @property
    def shows_nothing(self) -> bool:
        """True where no element of any output is finite on both sides: nothing that moves it can be seen."""
        pairs = zip(self.truth, self.eager, strict=True)
        return all(is_float(y) and not (np.isfinite(y) & np.isfinite(o)).any() for y, o in pairs)

    @property
    def roundoff(self) -> float:
        """U of the precision judged."""
        return UNIT_ROUNDOFF[self.precision]

    def bounds(self, index: int, *, keep: Array | None = None, eager: bool = True, spread: bool = True) -> Bounds:
        """Return what rounding explains of one float output.

        Args:
            index: which output. keep: elements to judge; all by default.
            eager: count eager's own error; without it only the noise model speaks (for float64 comparisons).
            spread: count S, which is measured if it has to be; False counts what is known of it so far, at first 0.
        """
        y = np.asarray(self.truth[index], np.float64)
        finite = np.isfinite(y) & np.isfinite(np.asarray(self.eager[index], np.float64))
        keep = finite if keep is None else keep & finite
        y0 = np.where(finite, y, 0.0)
        error: Floats = np.zeros_like(y0)
        if eager:
            error = np.abs(np.where(finite, np.asarray(self.eager[index], np.float64), 0.0) - y0)
        s = (self.spread if spread else self.rounding.least)[index]
        s = np.where(np.isfinite(s), s, 0.0)
        floor = SMALLEST_NORMAL[self.precision]
        return Bounds(y0, error, s, self.roundoff, floor, keep, self.constants)

    def chain_bounds(self, index: int, *, spread: bool = True, least: bool = False) -> Bounds:
        """Return the chain's bound for one output: constants' spread, float64's noise, ten times what link 1 measured.

        Float64's noise is taken from float32's: S where it is known; where it is not, eager's own error over the whole
        output, a sample of it, unless that is so small that eager was right by accident.

        Args:
            spread: count the first two; False takes 0 for them: they may take runs of their own.
            least: of the first only what is known of it so far.
        """
        assert self.chain is not None
        bounds = self.bounds(index, eager=False, spread=False)
        bounds = replace(bounds, spread=np.zeros_like(bounds.truth))
        resolution = self.chain.resolution
        measured = max(FINEST, 10 * resolution[index]) if resolution else EXACT
        tiny = float(np.finfo(np.float64).tiny)
        if not spread:
            return replace(bounds, roundoff=measured, floor=tiny)
        own = self._float32_noise(index) / self.roundoff * FLOAT64_NOISE
        moved = self.chain.least if least else self.chain.spread
        return replace(bounds, spread=moved[index] + own, roundoff=measured, floor=tiny)

    def _float32_noise(self, index: int) -> Floats:
        """Return S, or eager's RMS error in its place where that can stand for it."""
        error = None if self.rounding.measured else self._eager_noise(index)
        return self.bounds(index, eager=False).spread if error is None else np.full(np.shape(self.truth[index]), error)

    def _eager_noise(self, index: int) -> float | None:
        """Return eager's RMS error; None where it was right by accident, and cannot stand for S."""
        bounds = self.bounds(index, spread=False)
        error, size = rms(bounds.eager[bounds.keep]), rms(bounds.truth[bounds.keep])
        return error if error > 0 and error >= _BY_ACCIDENT * self.roundoff * size else None

    @cached_property
    def _ties(self) -> Ties:
        if self.looked is not None:
            return self.looked
        floor = SMALLEST_NORMAL[self.precision]
        return Ties(self.noisy, self.family.feeds, self.truth, roundoff=self.roundoff, floor=floor, seed=self.seed)

    def undecided(self, index: int) -> bool:
        """Return whether so much of an output hangs on ties that it is not judged; looks until that is known."""
        while not self._ties.too_many(index) and self._look():
            pass
        return self._ties.too_many(index)

    def _look(self) -> bool:
        """Make one more run that looks for ties; False where that was enough."""
        if self.noisy is None or (self._ties.runs >= _LOOKS and self.settled()):
            return False
        return self._ties.look(self.spread)

    def turns_at_once(self, index: int) -> bool:
        """Return whether a few runs show that so much of an output hangs on ties that it is not judged.

        It is asked before S is measured: eager's own error says how large rounding is. Where that cannot stand for S,
        nothing is seen here.
        """
        if self.noisy is None or not self.noisy.decides:
            return False
        while not self._ties.too_many(index) and self._ties.runs < _LOOKS:
            self._ties.look(self._noise_of_eager)
        return self._ties.too_many(index)

    @cached_property
    def _noise_of_eager(self) -> list[Floats]:
        """Eager's RMS error at each element of each output; infinite where it cannot stand for S."""
        sizes = [self._eager_noise(i) if is_float(y) else 0.0 for i, y in enumerate(self.truth)]
        pairs = zip(self.truth, sizes, strict=True)
        return [np.full(np.shape(y), np.inf if size is None else size) for y, size in pairs]

    @property
    def found_undecided(self) -> list[int]:
        """The outputs that were found undecided so far."""
        return [i for i in range(len(self.truth)) if self._ties.too_many(i)]

    def found_ties(self, index: int) -> int:
        """Return how many elements of an output were seen to turn so far."""
        return int(self._ties.found[index].sum())

    def ties(self, index: int) -> Array:
        """Return the elements of an output that turn under noise as large as the bound."""
        while self._look():
            pass
        return self._ties.found[index]


@dataclass(frozen=True)
class Evaluated:
    """Inputs, and what the reference makes of them in float64 and in its own precision."""

    feeds: Feeds
    truth: list[Array]
    eager: list[Array]


def make_case(
    reference: Reference,
    noisy: NoisyGraph | None,
    family: Family,
    names: Sequence[str],
    *,
    runs: int,
    seed: int,
    precision: str,
    fast: bool = False,
    known: Evaluated | None = None,
    spend: Callable[[float], None] | None = None,
    unmeasured: Callable[[str], None] | None = None,
    settled: Callable[[], bool] = bool,
) -> Case:
    """Evaluate the reference on a family.

    Args:
        reference: gives truth and eager outputs.
        noisy: the reference's graph for the noise runs; None takes S from a module's own runs (:mod:`.ensemble`).
        runs: noisy runs. fast: take S from float32 runs (:meth:`NoisyGraph.spreads_fast`).
        known: what was evaluated before; used where the feeds are these very ones.
        spend: told how many evaluations the runs with noise are, when they are made.
        unmeasured: told why S could not be measured; it is 0 then.
        settled: tells whether the verdict is a failure by now.
    """
    if known is None or known.feeds is not family.feeds:
        known = Evaluated(family.feeds, reference.truth(family.feeds), reference.native(family.feeds))
    shapes = [np.shape(y) for y in known.truth]
    measure: Measure = lambda _, __: iter(())  # noqa: E731 # one of three
    if noisy is None and isinstance(reference, (EagerReference, EnsembleReference)):
        module = reference if isinstance(reference, EagerReference) else reference.module
        measure, runs = lambda _, __: iter([[deviation for _, deviation in ensemble(module, family.feeds)]]), 0
    elif noisy is not None:
        measured = _noise_of(noisy, family, precision, fast=fast, spend=spend)
        measure = _or_nothing(measured, unmeasured) if unmeasured is not None else measured
    rounding = Spread(shapes, measure, runs=runs if noisy is not None else 0, seed=seed)
    return Case(family, names, known.truth, known.eager, rounding, precision, noisy, seed, settled=settled)


def _noise_of(
    noisy: NoisyGraph, family: Family, precision: str, *, fast: bool, spend: Callable[[float], None] | None
) -> Measure:
    u, floor = UNIT_ROUNDOFF[precision], SMALLEST_NORMAL[precision]

    def measure(runs: int, seed: int) -> Iterator[Sequence[Array]]:
        made = (
            noisy.spreads_fast(family.feeds, roundoff=u, runs=runs, seed=seed)
            if fast and not noisy.narrow
            else noisy.spreads(family.feeds, roundoff=u, floor=floor, runs=runs, seed=seed)
        )
        for number, found in enumerate(made):
            if spend is not None:
                spend(1 if number else 2)  # and the one without noise
            yield found

    return measure


def _or_nothing(measured: Measure, told: Callable[[str], None]) -> Measure:
    def measure(runs: int, seed: int) -> Iterator[Sequence[Array]]:
        try:
            yield from measured(runs, seed)
        except GraphError as error:  # the graph runs on the example and not on these inputs; the module does
            told(str(error))

    return measure
