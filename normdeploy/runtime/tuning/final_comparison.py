"""The last comparison: the fastest accepted candidates against each other, with fresh sessions, until it is clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normdeploy.runtime.latency import Latency, Ratio, paired_ratio
from normdeploy.runtime.tuning.measured_candidate import LITTLE, MeasuredCandidate, simplest_first

_FINALISTS, _MOST = 3, 6
_PASSES = 5
_BEYOND_NOISE = 2.58
"""Quantile of the normal distribution: 99 %, so that all five looks together keep to 95 % (Bonferroni)."""

Opener = Callable[[MeasuredCandidate], Callable[[], object]]
Timer = Callable[[Mapping[str, Callable[[], object]], float, int], Mapping[str, Latency]]


def compare_finalists(
    accepted: Sequence[MeasuredCandidate],
    base: MeasuredCandidate,
    opened: Opener,
    timed: Timer,
    seconds: float,
    seed: int,
    deadline: Callable[[], bool],
) -> MeasuredCandidate:
    """Time the finalists against each other and return the winner.

    One that another beats beyond the noise leaves. The winner is the simplest of those that stay: the untuned model,
    then float32, then lower precision, and among these what was tried earlier; which of them has the smallest number is
    luck, and would be another one in the next run. Where the gain over a simpler one is large but the noise too, the
    comparison is repeated with fresh sessions, five times in all: on a busy machine the first pass may be too short to
    tell. It is repeated, too, where the finalists turn out to be slower than one that was not among them: what looked
    fastest in the rounds before may have been luck.

    Args:
        accepted: candidates within the budget, in the order in which they were tried.
        base: the untuned model.
        opened: opens a session and returns what calls it once.
        timed: times calls against each other for some seconds, in an order drawn from a seed.
        seconds: for one pass.
        seed: of the order within rounds.
        deadline: whether time is over; then no further pass begins.
    """
    simplest = simplest_first(accepted, base.candidate)
    left = list(simplest)
    parts: list[Mapping[str, Latency]] = []
    while True:
        finalists = _finalists(left, base)
        order = finalists if len(parts) % 2 == 0 else finalists[::-1]
        runs = {entry.candidate.name: opened(entry) for entry in order}
        parts.append(timed(runs, seconds, seed + len(parts)))
        for entry in finalists:
            entry.latency, entry.ratio = _joint(entry, base, parts), _ratio(entry, base, parts).to_dict()
        entered = [entry for entry in simplest if entry in finalists]
        standing = [entry for entry in entered if not _beaten(entry, entered, parts)] or entered
        winner, fastest = standing[0], min(standing, key=lambda entry: entry.relative)
        clear = winner is fastest or _ratio(fastest, winner, parts).value > LITTLE
        left = [entry for entry in left if entry not in finalists or entry in standing]
        overlooked = any(entry not in finalists and entry.relative < LITTLE * winner.relative for entry in left)
        if (clear and not overlooked) or len(parts) == _PASSES or deadline():
            return winner


def _finalists(left: Sequence[MeasuredCandidate], base: MeasuredCandidate) -> list[MeasuredCandidate]:
    """Return the fastest so far, those that may be as fast, the best float32 candidate and the untuned model.

    The fastest are those by ratio to the untuned model and those by the clock: on a busy machine the untuned model,
    with all its threads, is what differs most between rounds.
    """
    ranked = sorted(left, key=lambda entry: entry.relative)
    clock = sorted((entry for entry in ranked if entry.latency), key=_median)
    close = [entry for entry in ranked[:_MOST] if entry.ratio and entry.ratio["low"] < ranked[0].relative]
    exact = [entry for entry in ranked if entry.candidate.precision == "float32"]
    fastest = list(dict.fromkeys((*ranked[:_FINALISTS], *clock[:_FINALISTS], *close)))
    return list(dict.fromkeys((*fastest[:_MOST], *exact[:1], base)))


def _median(entry: MeasuredCandidate) -> float:
    return entry.latency.median if entry.latency else float("inf")


def _joint(entry: MeasuredCandidate, other: MeasuredCandidate, parts: Sequence[Mapping[str, Latency]]) -> Latency:
    """Return an entry's times in the passes in which the other took part too."""
    name, beside = entry.candidate.name, other.candidate.name
    return Latency(name, sum((part[name].samples for part in parts if name in part and beside in part), ()))


def _ratio(entry: MeasuredCandidate, other: MeasuredCandidate, parts: Sequence[Mapping[str, Latency]]) -> Ratio:
    return _joint(entry, other, parts).ratio(_joint(other, entry, parts))


def _beaten(
    entry: MeasuredCandidate, entered: Sequence[MeasuredCandidate], parts: Sequence[Mapping[str, Latency]]
) -> bool:
    """Whether another one is faster beyond the noise."""
    others = [other for other in entered if other is not entry]
    both = ((_joint(entry, other, parts), _joint(other, entry, parts)) for other in others)
    return any(paired_ratio(mine, its, _BEYOND_NOISE).low > 1 for mine, its in both)
