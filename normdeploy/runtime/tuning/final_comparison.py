"""The last comparison: the fastest accepted candidates against each other, with fresh sessions, until it is clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normdeploy.runtime.latency import PAUSE, STRETCH, Latency, Ratio, measure_latency
from normdeploy.runtime.tuning.measured_candidate import LITTLE, MeasuredCandidate

_FINALISTS, _MOST = 3, 6
_PASSES = 3

Opener = Callable[[MeasuredCandidate], Callable[[], object]]


def compare_finalists(
    accepted: Sequence[MeasuredCandidate],
    base: MeasuredCandidate,
    opened: Opener,
    seconds: float,
    seed: int,
    deadline: Callable[[], bool],
) -> MeasuredCandidate:
    """Time the finalists against each other and return the winner.

    The winner has to beat the untuned model, and one of lower precision the best float32 candidate, beyond the noise;
    otherwise the simpler one stays. Where its gain is large but the noise too, the comparison is repeated with fresh
    sessions, three times in all: on a busy machine the first pass may be too short to tell. It is repeated, too, where
    the finalists turn out to be slower than one that was not among them: what looked fastest in the rounds before may
    have been luck.

    Args:
        accepted: candidates within the budget, the fastest so far first.
        base: the untuned model.
        opened: opens a session and returns what calls it once.
        seconds: for one pass.
        seed: of the order within rounds.
        deadline: whether time is over; then no further pass begins.
    """
    exact = next((entry for entry in accepted if entry.candidate.precision == "float32"), base)
    finalists = _finalists(accepted, exact, base)
    parts: list[Mapping[str, Latency]] = []
    while True:
        order = finalists if len(parts) % 2 == 0 else finalists[::-1]
        runs = {entry.candidate.name: opened(entry) for entry in order}
        parts.append(measure_latency(runs, seconds=seconds, stretch=STRETCH, pause=PAUSE, seed=seed + len(parts)))
        for entry in finalists:
            entry.latency, entry.ratio = _joint(entry, base, parts), _ratio(entry, base, parts).to_dict()
        winner, clear = _winner(finalists, base, exact, parts)
        overlooked = [
            entry for entry in accepted if entry not in finalists and entry.relative < LITTLE * winner.relative
        ]
        if (clear and not overlooked) or len(parts) == _PASSES or deadline():
            return winner
        finalists = _finalists(sorted(accepted, key=lambda entry: entry.relative), exact, base)


def _finalists(
    ranked: Sequence[MeasuredCandidate], exact: MeasuredCandidate, base: MeasuredCandidate
) -> list[MeasuredCandidate]:
    """Return the fastest so far, those that may be as fast, the best float32 candidate and the untuned model.

    The fastest are those by ratio to the untuned model and those by the clock: on a busy machine the untuned model,
    with all its threads, is what differs most between rounds.
    """
    clock = sorted((entry for entry in ranked if entry.latency), key=_median)
    close = [entry for entry in ranked[:_MOST] if entry.ratio and entry.ratio["low"] < ranked[0].relative]
    fastest = list(dict.fromkeys((*ranked[:_FINALISTS], *clock[:_FINALISTS], *close)))
    return list(dict.fromkeys((*fastest[:_MOST], exact, base)))


def _median(entry: MeasuredCandidate) -> float:
    return entry.latency.median if entry.latency else float("inf")


def _joint(entry: MeasuredCandidate, other: MeasuredCandidate, parts: Sequence[Mapping[str, Latency]]) -> Latency:
    """Return an entry's times in the passes in which the other took part too."""
    name, beside = entry.candidate.name, other.candidate.name
    return Latency(name, sum((part[name].samples for part in parts if name in part and beside in part), ()))


def _ratio(entry: MeasuredCandidate, other: MeasuredCandidate, parts: Sequence[Mapping[str, Latency]]) -> Ratio:
    return _joint(entry, other, parts).ratio(_joint(other, entry, parts))


def _winner(
    finalists: Sequence[MeasuredCandidate],
    base: MeasuredCandidate,
    exact: MeasuredCandidate,
    parts: Sequence[Mapping[str, Latency]],
) -> tuple[MeasuredCandidate, bool]:
    """Return who wins by the times so far, and whether that is clear."""
    fastest = min((entry for entry in finalists if entry.accepted), key=lambda entry: entry.relative)
    lossless = fastest.candidate.precision == "float32"  # then the other float32 one was first in earlier rounds alone
    for simpler in (base,) if lossless else (base, exact):  # settings, precision: given up for a gain beyond the noise
        if not simpler.accepted or simpler is fastest:
            continue
        gain = _ratio(fastest, simpler, parts)
        worth = simpler is base or (simpler.ratio is not None and simpler.ratio["high"] < 1)
        if gain.high >= 1 and worth:
            return simpler, gain.value > LITTLE
    return fastest, True
