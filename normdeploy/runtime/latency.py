"""Interleaved timing: every round gives each callable a turn, so that a noisy machine is noisy for all of them.

One after the other, two programs are measured on two different machines: the clock, the caches and the neighbours
change within seconds. Here a round is one turn of each, in an order drawn anew per round; ratios are taken inside the
round and only then summarized, which cancels whatever slowed the whole round.

A turn is one call, or a stretch of calls, where several threads take part after a pause. With one call each in turn,
caches hold what another left, threads are asleep when the turn comes, or another's still spin on the same cores; what a
way gains from being called back to back, as it is in use, does not show.

Sessions differ, too: where its buffers and threads happen to lie makes one session of a file faster than another for as
long as both live. An interval from the rounds of one session misses that. `measure_in_sessions` makes fresh ones, and
`session_ratio` takes its interval from how much they differ.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from normdeploy.errors import UsageError
from normdeploy.parsing.amounts import require_seconds

_NANO = 1e-9
_FEWEST, MOST = 5, 1000  # rounds
SESSIONS, _FEWEST_SESSIONS = 6, 3
# Student's 97.5 % quantiles for 1, 2, ... degrees of freedom
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
STRETCH, PAUSE = 0.05, 0.02  # seconds: a turn that is fair to several threads, and the rest before it


@dataclass(frozen=True)
class Latency:
    """The time of one callable over all rounds.

    Args:
        name: the callable's name.
        samples: seconds per round, in the order of the rounds; equal positions of two results were measured together.
    """

    name: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return float(np.median(self.samples))

    @property
    def quartiles(self) -> tuple[float, float]:
        """The 25 % and 75 % quantiles, in seconds: half of all calls lie between."""
        low, high = np.quantile(self.samples, [0.25, 0.75])
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """Interquartile range over the median, a pure number: 0.05 means half of all calls lie within 5 %."""
        low, high = self.quartiles
        return (high - low) / self.median

    def ratio(self, baseline: Latency) -> Ratio:
        """Return this callable's time as a multiple of ``baseline``'s, from pairs of the same round."""
        return paired_ratio(self, baseline)

    def to_dict(self) -> dict[str, object]:
        """Return name, rounds, median, quartiles and minimum (seconds) and the relative spread."""
        low, high = self.quartiles
        return {
            "name": self.name,
            "rounds": len(self.samples),
            "median_s": self.median,
            "q25_s": low,
            "q75_s": high,
            "min_s": min(self.samples),
            "spread": self.spread,
        }


@dataclass(frozen=True)
class Ratio:
    """Time of one callable over the time of another, within rounds.

    Args:
        value: the median of the rounds' ratios; below 1 is faster than the baseline.
        low: lower end of the 95 % confidence interval of that median.
        high: its upper end.
    """

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Return value, low and high."""
        return {"value": self.value, "low": self.low, "high": self.high}


_TWO_SIDED_95 = 1.96


def paired_ratio(latency: Latency, baseline: Latency, z: float = _TWO_SIDED_95) -> Ratio:
    """Median of ``latency[i] / baseline[i]`` with its distribution-free interval, of 95 % by default.

    The ends of the interval are the order statistics at ranks (n - z sqrt(n)) / 2 and n + 1 minus that (the sign test
    inverted, normal approximation to the binomial, z its quantile); it assumes nothing about the shape of the noise.

    Raises:
        UsageError: the two were not measured in the same rounds.

    Source: Conover, Practical Nonparametric Statistics, section 3.2 (confidence interval for a quantile).

    >>> paired_ratio(Latency("ours", (1.0, 2.0, 3.0)), Latency("theirs", (2.0, 4.0, 6.0))).value
    0.5
    """
    if len(latency.samples) != len(baseline.samples):
        raise UsageError(
            f"{latency.name!r} has {len(latency.samples)} rounds and {baseline.name!r} has {len(baseline.samples)}; "
            "expected results of one measure_latency call: measure both together"
        )
    ratios = np.sort(np.asarray(latency.samples) / np.asarray(baseline.samples))
    count = len(ratios)
    rank = max(1, int(np.floor((count - z * np.sqrt(count)) / 2)))
    return Ratio(float(np.median(ratios)), float(ratios[rank - 1]), float(ratios[count - rank]))


class Turn(TypedDict):
    """How a turn is taken: `measure_latency` has both."""

    stretch: float
    pause: float


def fair_turn(*threads: int) -> Turn:
    """Return the stretch and the pause for contenders with these numbers of threads; 0 stands for all cores.

    One thread needs no pause: nobody's other threads spin.
    """
    return Turn(stretch=STRETCH, pause=PAUSE if any(count != 1 for count in threads) else 0.0)


Sessions = Sequence[Mapping[str, Latency]]
"""What `measure_in_sessions` returns: each session's times by name."""


def measure_in_sessions(
    prepare: Callable[[int], Mapping[str, Callable[[], object]]],
    *,
    rounds: int | None = None,
    seconds: float = 5.0,
    stretch: float = 0.0,
    pause: float = 0.0,
    seed: int = 0,
    clock: Callable[[], int] | None = None,
) -> Sessions:
    """Time callables against each other in several sessions, made afresh for each.

    Args:
        prepare: returns the callables of session 0, 1, ...; the same names each time, or fewer.
        rounds: in all, shared between the sessions; by default as many as fit in ``seconds``.
        seconds: for all sessions; where calls are so slow that they do not fit, `SESSIONS` become three.
        stretch, pause, seed, clock: see `measure_latency`.

    Raises:
        UsageError: fewer than one round, or negative times.
    """
    count = SESSIONS if rounds is None else max(1, min(SESSIONS, rounds))
    begun = time.perf_counter_ns()
    parts: list[Mapping[str, Latency]] = []
    for session in range(count):
        over = (time.perf_counter_ns() - begun) * _NANO > seconds
        if rounds is None and over and session >= _FEWEST_SESSIONS:
            break
        share = None if rounds is None else rounds // count + (session < rounds % count)
        parts.append(
            measure_latency(
                prepare(session),
                rounds=share,
                seconds=seconds / count,
                warmup=3 if session == 0 else 1,
                fewest=1,
                stretch=stretch,
                pause=pause,
                seed=seed + session,
                clock=clock,
            )
        )
    return parts


def joined(sessions: Sessions, name: str) -> Latency:
    """Return a callable's times in all sessions."""
    return Latency(name, sum((part[name].samples for part in sessions if name in part), ()))


def session_ratio(sessions: Sessions, name: str, baseline: str) -> Ratio:
    """Return the time of one callable over another's, with an interval from how much sessions differ.

    With r_k the median over session k's rounds of their ratio, the value is exp(mean log r_k) and the interval
    exp(mean log r_k ± t s / sqrt K), s the deviation of log r_k and t Student's 97.5 % quantile with K - 1 degrees of
    freedom: the units are the sessions, not the rounds within them. Of one session it is `paired_ratio`'s.

    Source: Student, The Probable Error of a Mean, 1908.
    """
    both = [part for part in sessions if name in part and baseline in part]
    if len(both) < 2 or name == baseline:
        return paired_ratio(joined(both, name), joined(both, baseline))
    logs = [math.log(part[name].ratio(part[baseline]).value) for part in both]
    centre, count = statistics.fmean(logs), len(logs)
    half = _STUDENT[min(count - 1, len(_STUDENT)) - 1] * statistics.stdev(logs) / math.sqrt(count)
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def measure_latency(
    callables: Mapping[str, Callable[[], object]],
    *,
    rounds: int | None = None,
    seconds: float = 5.0,
    warmup: int = 3,
    fewest: int = _FEWEST,
    stretch: float = 0.0,
    pause: float = 0.0,
    seed: int = 0,
    clock: Callable[[], int] | None = None,
) -> dict[str, Latency]:
    """Time several callables against each other, interleaved.

    Args:
        callables: name to a function without arguments that does one call of what is timed and waits for its result.
        rounds: how many rounds; by default as many as fit in ``seconds``, between ``fewest`` and 1000.
        seconds: when ``rounds`` is not given, no round begins later than this after the first one. It is held against
            the clock, not estimated from a first call: on a busy machine one call may take a hundred times another.
        stretch: seconds for which a turn calls in a row; a sample is the mean over its calls. By default a turn is one
            call. Longer ones let what a callable gains from being called back to back (warm caches, threads that are
            awake) show: see :data:`STRETCH`.
        pause: seconds to sleep before each turn, so that threads that still spin from another's turn go to sleep.
        fewest: rounds that are taken whatever the time.
        warmup: untimed calls of each before the first round (lazy initialization, thread pools, caches).
        seed: draws the order within each round.
        clock: what a sample is read off, in ns; by default the wall's. ``time.thread_time_ns`` leaves out what others
            take of a busy machine, and is the time of a call only where the calling thread does all of it.

    Returns:
        name to Latency, in the order of ``callables``; samples at equal positions belong to the same round.

    Raises:
        UsageError: no callables, a count below 1, no seconds, or a negative pause.

    >>> found = measure_latency({"sum": lambda: sum(range(10)), "max": lambda: max(range(10))}, rounds=8)
    >>> {name: len(latency.samples) for name, latency in found.items()}
    {'sum': 8, 'max': 8}
    """
    if not callables:
        raise UsageError("no callables to measure; expected at least one: pass a mapping of name to function")
    require_seconds("seconds", seconds)
    if (rounds is not None and rounds < 1) or warmup < 1:
        raise UsageError(f"rounds={rounds}, warmup={warmup}; expected at least 1 of each: raise them")
    if stretch < 0 or pause < 0:
        raise UsageError(f"stretch={stretch}, pause={pause}; expected seconds, at least 0: raise them")
    names = list(callables)
    for name in names:
        for _ in range(warmup):
            callables[name]()
    order = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle of one call would be charged to whoever happens to run
    begun, allowed, turn = time.perf_counter_ns(), round(seconds / _NANO), round(stretch / _NANO)
    try:
        for done in range(rounds or MOST):
            if rounds is None and done >= fewest and time.perf_counter_ns() - begun >= allowed:
                break
            for index in order.permutation(len(names)):
                call = callables[names[index]]
                if pause:
                    time.sleep(pause)
                samples[names[index]].append(_turn(call, turn, clock or time.perf_counter_ns))
    finally:
        if collecting:
            gc.enable()
    return {name: Latency(name, tuple(samples[name])) for name in names}


def _turn(call: Callable[[], object], least: int, clock: Callable[[], int]) -> float:
    """Call until ``least`` nanoseconds are over, once at least; return the mean seconds of a call."""
    start, count = clock(), 0
    while True:
        call()
        count += 1
        taken = clock() - start
        if taken >= least:
            return max(taken, 1) * _NANO / count
